// Numbers for people: three significant digits, no more than 10 characters. Files get exact ones.
#ifndef FSDP_TRAIN_TRAINER_CORE_UNITS_H_
#define FSDP_TRAIN_TRAINER_CORE_UNITS_H_

#include <cstdint>
#include <string>

namespace fsdp {

std::string HumanBytes(int64_t bytes);      // "512 B", "1.50 KiB", "23.4 GiB": powers of 1024.
std::string HumanCount(double count);       // "950", "12.3k", "4.56M", "7.89B": powers of 1000.
std::string HumanDuration(double seconds);  // "12.3 ms", "4.56 s", "3m05s", "2h07m", "3d04h".

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_UNITS_H_
