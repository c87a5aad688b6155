// Fuzz targets of the data room's readers: see targets.h for the contract. Each takes any bytes and
// returns 1 if they were accepted and used, 0 if DataError refused them.
#ifndef FSDP_TRAIN_TESTS_FUZZ_DATA_TARGETS_H_
#define FSDP_TRAIN_TESTS_FUZZ_DATA_TARGETS_H_

#include <cstddef>
#include <cstdint>

namespace fsdp {

int FuzzTokenizerJson(const uint8_t* data, size_t size);
// A file of tokens: as its header says, and as raw ones.
int FuzzTokenFile(const uint8_t* data, size_t size);
int FuzzTokenManifest(const uint8_t* data, size_t size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_FUZZ_DATA_TARGETS_H_
