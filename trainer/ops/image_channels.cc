#include "trainer/ops/image_channels.h"

#include <string>
#include <vector>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/image_channels_cpu.h"
#include "trainer/ops/cuda/image_channels_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

double Bytes(const ConstView& view) { return static_cast<double>(view.bytes()); }

// Images [samples, ..., channels]. The shape of their channels.
Shape CheckImages(const Arguments& args, const char* name, const ConstView& images) {
  args.CheckDType(name, images.dtype, kFloatDTypes);
  args.Check(name, images, images.dtype, images.shape);
  const int rank = images.shape.rank();
  if (rank < 2 || images.NumElements() == 0) {
    args.Fail(std::string(name) + " is " + images.shape.ToString() +
              ", want [samples, ..., channels] with elements");
  }
  return {images.shape[0], images.shape[rank - 1]};
}

}  // namespace

void MeanPixelsForward(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "mean_pixels_forward";
  const Arguments args(kOp);
  args.Check("y", y, x.dtype, CheckImages(args, "x", x));
  args.CheckDisjoint("y", y, "x", x);
  const Cost cost{.flops = static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x),
                  .bytes_written = Bytes(y)};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {cost},
                  {OnCpu(MeanPixelsForwardCpu, x, y), OnCuda(MeanPixelsForwardCuda, x, y)}});
}

void MeanPixelsBackward(Stream& stream, ConstView dy, View dx, bool adds) {
  constexpr const char* kOp = "mean_pixels_backward";
  const Arguments args(kOp);
  args.Check("dy", dy, dx.dtype, CheckImages(args, "dx", dx));
  args.CheckDisjoint("dx", dx, "dy", dy);
  const Cost cost{.flops = static_cast<double>(dx.NumElements()) * (adds ? 2 : 1),
                  .bytes_read = Bytes(dy) + (adds ? Bytes(dx) : 0),
                  .bytes_written = Bytes(dx)};
  std::vector<Range> reads = {dy};
  if (adds) reads.push_back(dx);
  stream.Enqueue(
      {kOp,
       reads,
       {dx},
       {cost},
       {OnCpu(MeanPixelsBackwardCpu, dy, dx, adds), OnCuda(MeanPixelsBackwardCuda, dy, dx, adds)}});
}

void ScaleChannelsForward(Stream& stream, ConstView x, ConstView f, View y) {
  constexpr const char* kOp = "scale_channels_forward";
  const Arguments args(kOp);
  args.Check("f", f, x.dtype, CheckImages(args, "x", x));
  args.Check("y", y, x.dtype, x.shape);
  args.CheckDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "f", f);
  const Cost cost{.flops = static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x) + Bytes(f),
                  .bytes_written = Bytes(y)};
  stream.Enqueue(
      {kOp,
       {x, f},
       {y},
       {cost},
       {OnCpu(ScaleChannelsForwardCpu, x, f, y), OnCuda(ScaleChannelsForwardCuda, x, f, y)}});
}

void ScaleChannelsBackward(Stream& stream, ConstView x, ConstView f, ConstView dy, View dx,
                           View df) {
  constexpr const char* kOp = "scale_channels_backward";
  const Arguments args(kOp);
  const Shape channels = CheckImages(args, "x", x);
  args.Check("f", f, x.dtype, channels);
  args.Check("dy", dy, x.dtype, x.shape);
  args.Check("dx", dx, x.dtype, x.shape);
  args.Check("df", df, x.dtype, channels);
  args.CheckSameOrDisjoint("dx", dx, "dy", dy);
  args.CheckDisjoint("dx", dx, "x", x);
  args.CheckDisjoint("dx", dx, "f", f);
  args.CheckDisjoint("df", df, "x", x);
  args.CheckDisjoint("df", df, "f", f);
  args.CheckDisjoint("df", df, "dy", dy);
  args.CheckDisjoint("df", df, "dx", dx);
  const Cost cost{.flops = 3 * static_cast<double>(x.NumElements()),
                  .bytes_read = Bytes(x) + Bytes(f) + Bytes(dy),
                  .bytes_written = Bytes(dx) + Bytes(df)};
  stream.Enqueue({kOp,
                  {x, f, dy},
                  {dx, df},
                  {cost},
                  {OnCpu(ScaleChannelsBackwardCpu, x, f, dy, dx, df),
                   OnCuda(ScaleChannelsBackwardCuda, x, f, dy, dx, df)}});
}

}  // namespace fsdp
