#include "trainer/runtime/cuda/copy_rows.h"

#include "trainer/runtime/cuda/cuda_call.h"

namespace fsdp {

// Row by row: a pitch of cudaMemcpy2DAsync() is below 2 GiB.
void CopyRowsCuda(CudaStreamHandle stream, const Rows& rows, std::byte* to, const std::byte* from) {
  if (rows.bytes == 0) return;
  for (int64_t row = 0; row < rows.rows; ++row) {
    stream.WillPut(1);
    CheckCall(cudaMemcpyAsync(to + row * rows.to_pitch, from + row * rows.from_pitch, rows.bytes,
                              cudaMemcpyDefault, stream),
              "cudaMemcpyAsync");
  }
}

}  // namespace fsdp
