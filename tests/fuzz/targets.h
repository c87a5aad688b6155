// Fuzz targets: readers of files and messages from others. Each takes any bytes and returns 1 if
// they were accepted, 0 if they were refused by the error that is meant for it. Accepted input has
// been used, and written and read again where there is a writer. Another exception, an FSDP_CHECK
// or a sanitizer's report is a finding.
#ifndef FSDP_TRAIN_TESTS_FUZZ_TARGETS_H_
#define FSDP_TRAIN_TESTS_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

namespace fsdp {

int FuzzSafetensors(const uint8_t* data, size_t size);
// The coded weights of a safetensors file (trainer/weights/bnb_tensor.h).
int FuzzBnbTensor(const uint8_t* data, size_t size);
// `data` comes behind the manifest's first line, whose checksum is made to fit.
int FuzzManifest(const uint8_t* data, size_t size);
int FuzzHfConfig(const uint8_t* data, size_t size);
int FuzzRecipe(const uint8_t* data, size_t size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_FUZZ_TARGETS_H_
