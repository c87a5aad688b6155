// CRC-32C, Castagnoli's polynomial 0x1EDC6F41 reflected (RFC 3720, appendix B.4).
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_CRC32C_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace fsdp {

uint32_t Crc32c(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_CRC32C_H_
