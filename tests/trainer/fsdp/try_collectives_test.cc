#include "trainer/fsdp/try_collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "trainer/fsdp/model_layout.h"

namespace fsdp {
namespace {

using Sizes = std::map<Group, std::vector<Communicator::Size>>;

// By the shapes alone: every rank comes to the same.
Sizes Largest(const Gpt2& model, ExecutorOptions options, int world, int64_t* most) {
  const Mesh mesh = MeshFor(options, /*rank=*/0, world);
  const Layout layout = LayoutFor(options, model, mesh.shard_size());
  *most = 0;
  for (const FlatParameter& flat : layout.flat_parameters) {
    *most = std::max(*most, flat.shard_size);
  }
  return LargestCollectives(layout, options, mesh);
}

TEST(LargestCollectives, AreThoseOfTheLargestUnit) {
  const Gpt2 model(testing::TinyRun::TinyConfig());
  ExecutorOptions options;
  options.mixed_precision.param_dtype = DType::kBFloat16;
  options.mixed_precision.reduce_dtype = DType::kBFloat16;
  int64_t most = 0;
  const Communicator::Size gather{Collective::kAllGather, DType::kBFloat16, DType::kBFloat16};
  const Communicator::Size reduce{Collective::kReduceScatter, DType::kBFloat16, DType::kFloat32};
  const Communicator::Size sum{Collective::kAllReduce, DType::kBFloat16, DType::kBFloat16};
  const auto with = [&](Communicator::Size size) {
    size.n = most;
    return std::vector<Communicator::Size>{size};
  };
  options.sharding_strategy = Strategy::kFullShard;
  Sizes sizes = Largest(model, options, /*world=*/4, &most);
  EXPECT_EQ(sizes, (Sizes{{Group::kGather, with(gather)}, {Group::kReduce, with(reduce)}}));
  options.sharding_strategy = Strategy::kHybridShard;
  options.shard_size = 2;
  sizes = Largest(model, options, /*world=*/4, &most);
  EXPECT_EQ(sizes, (Sizes{{Group::kGather, with(gather)},
                          {Group::kReduce, with(reduce)},
                          {Group::kReplicate, with(sum)}}));
  options.fake_all_gather = true;
  sizes = Largest(model, options, /*world=*/4, &most);
  EXPECT_EQ(sizes.count(Group::kGather), 0u);
  options = {};
  options.sharding_strategy = Strategy::kNoShard;
  sizes = Largest(model, options, /*world=*/4, &most);
  EXPECT_EQ(sizes, (Sizes{{Group::kReplicate,
                           with({Collective::kAllReduce, DType::kFloat32, DType::kFloat32})}}));
}

}  // namespace
}  // namespace fsdp
