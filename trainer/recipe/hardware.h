// A machine as a file describes it (configs/hardware/): `plan --hardware` fits a recipe into it,
// `simulate` runs a job on a cluster of it, and `bench floor` prices a step with it.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_
#define FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// Links of one kind: inside a host, or between hosts. Rates are bytes a second that leave a rank
// inside a host, and that leave a whole host, over all of its adapters, between hosts.
struct LinkRates {
  // A ring and a pairwise exchange of a large message, and the latency of one of their steps.
  std::optional<double> ring_bytes_per_s, ring_step_s;
  std::optional<double> all_to_all_bytes_per_s, all_to_all_step_s;
  // A message of so many bytes a rank has half of those rates.
  double ramp_bytes = 0;
};

struct NetworkRates {
  int64_t ranks_per_host = 1;
  double collective_s = 0;  // What a collective takes beside its steps: it is launched, it meets.
  LinkRates inside, between;
};

// Seconds that the host, which enqueues, is busy.
struct HostTimes {
  double operation_s = 0;   // To enqueue one.
  double event_s = 0;       // To record one.
  double wait_s = 0;        // To let a stream wait for an event.
  double allocation_s = 0;  // Of a block, by a caching allocator.
  // To take a segment from the device, or to give it back: so long, and so long a byte.
  double segment_s = 0, segment_s_per_byte = 0;
};

struct Hardware {
  enum class Device { kCpu, kCuda };

  std::string name;
  Device device = Device::kCuda;
  std::optional<int64_t> memory;       // Bytes that a program gets of one device.
  std::optional<int64_t> outside;      // Of those, what contexts and libraries take of a rank.
  std::optional<int64_t> host_memory;  // Bytes of a host, for all of its ranks.
  // Products: FLOP/s of the data sheet by the dtype of their factors, and the share of it that a
  // huge product reaches. With the number of multiprocessors, products of other shapes are slower,
  // as tiles in waves are; the begin and the end of a tile take as long as `tile_terms` terms of
  // its sums.
  std::optional<double> bf16_flops, fp16_flops, fp32_flops;
  double product_share = 1;
  std::optional<int64_t> multiprocessors;
  int64_t tile_terms = 192;
  // Attention in tiles, with the FLOPs below the diagonal; the second pair is of heads of up to 64,
  // and where it is null they have the rates of all.
  std::optional<double> attention_forward_flops, attention_backward_flops;
  std::optional<double> attention_64_forward_flops, attention_64_backward_flops;
  std::optional<double> copy_bytes_per_s;  // A copy in device memory, read and written.
  double launch_s = 0;                     // From one kernel to the next on a stream.
  // Cores of the CPU that the rates above are of; where it is the device, streams share them.
  std::optional<int64_t> cores;
  // Operations with a rate of their own in place of a copy's, by name: bytes a second, read and
  // written. And in place of the rates of products and of attention: FLOP/s of the whole operation,
  // what it does beside its products included. A key "NAME, DTYPE" is of runs whose parameters are
  // computed with in that dtype (fp32, bf16, fp16), and counts there before "NAME".
  std::map<std::string, double> op_bytes_per_s, op_flops_per_s;
  // How a program falls short of these rates: the share of them that its kernels attain in a whole
  // step, and what its kernels that are no product move over what ours do.
  double reached = 1;
  double unfused_bytes = 1;
  // While a collective is on its way: the rate that kernels keep beside it, and it beside them.
  double kernels_beside_collectives = 1, collectives_beside_kernels = 1;
  // What offload is held to: the link between a device and its host, each way while the other way
  // is busy, too; of the host's memory what one rank gets, read and written; and of a disk.
  std::optional<double> host_link_bytes_per_s, host_copy_bytes_per_s;
  std::optional<double> disk_read_bytes_per_s, disk_write_bytes_per_s;
  HostTimes host;
  std::optional<NetworkRates> network;  // Without one there is one rank.
  // Where each number comes from, by its key ("network.inside.ring_step_s"), or one for all of a
  // map
  // ("op_bytes_per_s"): "FORM: TEXT". Forms: data sheet, publication, measured (by this project,
  // elsewhere), calibrate (by the command, on that machine), assumed; and "seen: FIGURE CURVE X",
  // of a number that was set so that the simulator meets that point of the FSDP paper.
  std::map<std::string, std::string> sources;
};

// Throws ConfigError with a line for every mistake, as LoadRecipe does. A number of the file that
// has no source is one, and so is a source that no number has.
Hardware ReadHardware(const std::string& path);

// YAML that ReadHardware() takes for an equal machine. Left out is what is as it is in Hardware{},
// and has no source. Throws std::invalid_argument where another number has none, or a bad one.
std::string WriteHardware(const Hardware& hardware);

// The number's own source, else that of the innermost map which holds it; "" where there is none.
std::string SourceOf(const Hardware& hardware, const std::string& key);

// "FIGURE CURVE X" of all sources of that form, in order, each once.
std::vector<std::string> PointsSeen(const Hardware& hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_
