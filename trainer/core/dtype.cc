#include "trainer/core/dtype.h"

#include "trainer/core/check.h"

namespace fsdp {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
      return 1;
  }
  FSDP_CHECK(false) << "dtype " << static_cast<int>(dtype);
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  FSDP_CHECK(false) << "dtype " << static_cast<int>(dtype);
}

}  // namespace fsdp
