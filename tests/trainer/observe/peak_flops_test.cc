#include <gtest/gtest.h>

#include "trainer/observe/throughput.h"

namespace fsdp {
namespace {

TEST(PeakFlops, IsThatOfTheFormAndTheDType) {
  EXPECT_EQ(PeakFlops("NVIDIA H100 80GB HBM3", DType::kBFloat16), 989.4e12);
  EXPECT_EQ(PeakFlops("NVIDIA H100 PCIe", DType::kFloat16), 756.5e12);
  EXPECT_EQ(PeakFlops("NVIDIA H200", DType::kFloat32), 67e12);
  EXPECT_EQ(PeakFlops("NVIDIA A100-SXM4-80GB", DType::kBFloat16), 312e12);
}

TEST(PeakFlops, OfWhatIsUnknownThereIsNone) {
  EXPECT_EQ(PeakFlops("NVIDIA T4", DType::kFloat16), std::nullopt);
  EXPECT_EQ(PeakFlops("", DType::kFloat32), std::nullopt);
  EXPECT_EQ(PeakFlops("NVIDIA H200", DType::kInt32), std::nullopt);
}

}  // namespace
}  // namespace fsdp
