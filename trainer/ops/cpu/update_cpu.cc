#include "trainer/ops/cpu/update_cpu.h"

#include <algorithm>

#include "trainer/core/philox.h"
#include "trainer/ops/element_backends.h"

namespace fsdp {

UpdateTensors TensorsOf(const UpdateOperands& o, int64_t update) {
  const uint64_t count = update, seed = o.extras.seed;
  UpdateTensors tensors{.g = o.g.data,
                        .p = o.p.data,
                        .states = {o.states[0].data, o.states[1].data},
                        .copy = o.extras.copy.data,
                        .average = o.extras.average.data,
                        .g_dtype = o.g.dtype,
                        .p_dtype = o.p.dtype,
                        .state_dtype = o.states[0].dtype,
                        .copy_dtype = o.extras.copy.dtype,
                        .average_rate = static_cast<float>(1 - o.extras.decay)};
  for (uint32_t rounded = 0; rounded < 3; ++rounded) {
    const PhiloxCounter words =
        Philox({static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), rounded, 0},
               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    tensors.draw_keys[rounded][0] = words[0], tensors.draw_keys[rounded][1] = words[1];
  }
  return tensors;
}

void CopyOfSkipped(ThreadPool& pool, const UpdateOperands& o) {
  const View& copy = o.extras.copy;
  if (copy.data == nullptr) return;
  if (copy.dtype != o.p.dtype) return CastCpu(pool, o.p, copy);
  std::copy_n(o.p.data, o.p.bytes(), copy.data);
}

}  // namespace fsdp
