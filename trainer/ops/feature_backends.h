// Kernels of embeddings and of vectors of features: bags.h, embedding.h, feature_vectors.h,
// table_rows.h.
// Tests: tests/trainer/ops/bags_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_FEATURE_BACKENDS_H_
#define FSDP_TRAIN_TRAINER_OPS_FEATURE_BACKENDS_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/table_rows.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// bags.h
[[gnu::weak]] void PoolBagsCuda(CudaStreamHandle stream, const ConstView& vectors,
                                const ConstView& places, const ConstView& first, const View& out);
// A place with so many slots has a block to itself, in a kernel of its own.
inline constexpr int64_t kHotSlots = 256;
[[gnu::weak]] void PoolBagsBackwardCuda(CudaStreamHandle stream, const ConstView& d,
                                        const ConstView& places, const ConstView& order,
                                        const ConstView& first, const View& sums);

// embedding.h
[[gnu::weak]] void EmbeddingForwardCuda(CudaStreamHandle stream, const ConstView& tokens,
                                        const std::optional<ConstView>& positions,
                                        const ConstView& wte, const std::optional<ConstView>& wpe,
                                        const View& y);
[[gnu::weak]] void EmbeddingBackwardCuda(CudaStreamHandle stream, const ConstView& tokens,
                                         const ConstView& order,
                                         const std::optional<ConstView>& positions,
                                         const ConstView& dy, const std::optional<View>& dwte,
                                         const std::optional<View>& dwpe);

// feature_vectors.h
[[gnu::weak]] void JoinColumnsCuda(CudaStreamHandle stream, const ConstView& a, const ConstView& b,
                                   const View& y);
[[gnu::weak]] void SplitColumnsCuda(CudaStreamHandle stream, const ConstView& y, const View& a,
                                    const View& b);
[[gnu::weak]] void SwapVectorsCuda(CudaStreamHandle stream, const ConstView& x, int64_t samples,
                                   const View& y);
[[gnu::weak]] void PairDotsForwardCuda(CudaStreamHandle stream, const ConstView& x, float scale,
                                       const View& y);
[[gnu::weak]] void PairDotsBackwardCuda(CudaStreamHandle stream, const ConstView& x, float scale,
                                        const ConstView& dy, const View& dx);
[[gnu::weak]] void MultiplyForwardCuda(CudaStreamHandle stream, const ConstView& a,
                                       const ConstView& b, const View& y);
[[gnu::weak]] void MultiplyBackwardCuda(CudaStreamHandle stream, const ConstView& a,
                                        const ConstView& b, const ConstView& dy, const View& da,
                                        const View& db);

// table_rows.h
[[gnu::weak]] void TakeRowsCuda(CudaStreamHandle stream, const ConstView& from,
                                const ConstView& places, const View& to);
[[gnu::weak]] void PutRowsCuda(CudaStreamHandle stream, const ConstView& from,
                               const ConstView& places, const View& to);
[[gnu::weak]] void PlacesOfRoundCuda(CudaStreamHandle stream, const ExchangeRound& round,
                                     const ConstView& rows, const ConstView& owners,
                                     const View& places, const View& ids);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_FEATURE_BACKENDS_H_
