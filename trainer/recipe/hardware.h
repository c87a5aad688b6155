// A machine as a file describes it (configs/hardware/): what `plan --hardware` fits a recipe into
// where the machine at hand is another, and what `bench floor` prices a step with.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_
#define FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp {

struct Hardware {
  enum class Device { kCpu, kCuda };

  std::string name;
  Device device = Device::kCuda;
  std::optional<int64_t> memory;       // Bytes that a program gets of one device.
  std::optional<int64_t> outside;      // Of those, what contexts and libraries take of a rank.
  std::optional<int64_t> host_memory;  // Bytes of a host, for all of its ranks.
  // The best rates seen of one device: of large products, by the dtype of their factors, of
  // attention, with the FLOPs below the diagonal, and of a copy, read and written. With the number
  // of multiprocessors products of other shapes are slower, as tiles in waves are. The second pair
  // is of heads of up to 64; where it is null they have the rates of all.
  std::optional<double> bf16_flops, fp16_flops, fp32_flops;
  std::optional<int64_t> multiprocessors;
  std::optional<double> attention_forward_flops, attention_backward_flops;
  std::optional<double> attention_64_forward_flops, attention_64_backward_flops;
  std::optional<double> copy_bytes_per_s;
  // What offload is held to: the link between a device and its host, each way while the other way
  // is busy, too; of the host's memory what one rank gets, read and written; and of a disk.
  std::optional<double> host_link_bytes_per_s, host_copy_bytes_per_s;
  std::optional<double> disk_read_bytes_per_s, disk_write_bytes_per_s;
};

// Throws ConfigError with a line for every mistake, as LoadRecipe does.
Hardware ReadHardware(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_
