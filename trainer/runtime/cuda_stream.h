// CUDA's stream without its headers: what launches on it goes by this name outside runtime/cuda.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_

struct CUstream_st;

namespace fsdp {

using CudaStreamHandle = CUstream_st*;  // cudaStream_t.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CUDA_STREAM_H_
