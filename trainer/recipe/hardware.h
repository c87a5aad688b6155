// A machine as a file describes it (configs/hardware/). `plan --hardware` fits a recipe into the
// machine, `simulate` runs a job on a cluster of such machines, `bench floor` prices a step.
#ifndef FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_
#define FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// Links of one kind: inside a host, or between hosts. Inside a host a rate is bytes per second that
// leave a rank; between hosts, bytes per second that leave a host over all of its adapters.
struct LinkRates {
  // Rates of a ring and of a pairwise exchange for large messages, and the latency of a step.
  std::optional<double> ring_bytes_per_s, ring_step_s;
  std::optional<double> all_to_all_bytes_per_s, all_to_all_step_s;
  // A message of this many bytes per rank reaches half of those rates.
  double ramp_bytes = 0;
};

struct NetworkRates {
  int64_t ranks_per_host = 1;
  double collective_s = 0;  // Launch and rendezvous of a collective, beside its steps.
  LinkRates inside, between;
};

// Seconds that the enqueuing host is busy.
struct HostTimes {
  double operation_s = 0;   // Enqueue an operation.
  double event_s = 0;       // Record an event.
  double wait_s = 0;        // Make a stream wait for an event.
  double allocation_s = 0;  // Get a block from a caching allocator.
  // Take a segment from the device or give it back: a fixed time, and a time per byte.
  double segment_s = 0, segment_s_per_byte = 0;
};

struct Hardware {
  enum class Device { kCpu, kCuda };

  std::string name;
  Device device = Device::kCuda;
  // The kind of kernels that a CPU's rates were measured with, as IsaChoice::name has it
  // (ops/cpu/kinds.h). Empty: unknown, and on a GPU.
  std::optional<std::string> kernels;
  std::optional<int64_t> memory;       // Bytes of one device that programs get.
  std::optional<int64_t> outside;      // Bytes of these for a rank's contexts, libraries.
  std::optional<int64_t> host_memory;  // Bytes of a host, for all of its ranks.
  // Products: the data sheet's FLOP/s by the factors' dtype, and the share that a huge product
  // reaches. With the number of multiprocessors, products of other shapes are slower: their tiles
  // run in waves, and the begin and end of a tile take as long as `tile_terms` terms of its sums.
  std::optional<double> bf16_flops, fp16_flops, fp32_flops;
  double product_share = 1;
  std::optional<int64_t> multiprocessors;
  std::optional<double> capability;  // A GPU's compute capability: 9.0.
  int64_t tile_terms = 192;
  // Attention in tiles, FLOPs below the diagonal. The second pair is for heads of up to 64; where
  // it is null, the first pair holds.
  std::optional<double> attention_forward_flops, attention_backward_flops;
  std::optional<double> attention_64_forward_flops, attention_64_backward_flops;
  std::optional<double> copy_bytes_per_s;  // Device memory to device memory: read plus written.
  double launch_s = 0;                     // Between two kernels of a stream.
  // Cores that the CPU's rates above were measured with. Where the CPU is the device, its streams
  // share them.
  std::optional<int64_t> cores;
  // Rates of single operations, by name. op_bytes_per_s replaces a copy's rate: bytes read plus
  // written per second. op_flops_per_s replaces the rates of products and attention: FLOP/s of the
  // whole operation, its work beside products included. A key "NAME, DTYPE" counts before "NAME" in
  // runs that compute in that dtype (fp32, bf16, fp16).
  // op_terms and op_sides correct op_flops_per_s for small products. An operation with [m, n]
  // results, each a sum of k terms, takes FLOPs (1 + op_terms / k + op_sides (1 / m + 1 / n)) /
  // rate. op_terms: the time to begin and end a sum, in terms. op_sides: the time of the work for a
  // row of A or a column of B, in results.
  std::map<std::string, double> op_bytes_per_s, op_flops_per_s, op_terms, op_sides;
  // How another program differs: the share of these rates that its kernels reach in a whole step,
  // and the bytes that its kernels other than products move, as a multiple of ours.
  double reached = 1;
  double unfused_bytes = 1;
  // While a collective runs beside kernels: the share of their rate that each side keeps.
  double kernels_beside_collectives = 1, collectives_beside_kernels = 1;
  // Rates of offload: each direction of the link between device and host while both are busy; the
  // host memory bandwidth of one rank, read plus written; a disk.
  std::optional<double> host_link_bytes_per_s, host_copy_bytes_per_s;
  std::optional<double> disk_read_bytes_per_s, disk_write_bytes_per_s;
  HostTimes host;
  std::optional<NetworkRates> network;  // Without one there is one rank.
  // Where each number comes from: "FORM: TEXT" by its key ("network.inside.ring_step_s") or by the
  // key of its map ("op_bytes_per_s"). Forms: data sheet, publication, measured (by this project,
  // elsewhere), calibrate (by the command, on that machine), assumed. "seen: FIGURE CURVE X": the
  // number was set so that the simulator meets that point of the FSDP paper.
  std::map<std::string, std::string> sources;
};

// Throws ConfigError with a line for every mistake, as LoadRecipe does. A number without a source
// is a mistake, and so are a source without a number and a GPU's kind of kernels. Each number has
// bounds, which keep all times finite (docs/simulator.md).
Hardware ReadHardware(const std::string& path);
// JSON Schema of these files, with each number's bounds.
std::string HardwareSchema();

// YAML that ReadHardware() reads as an equal machine. Numbers that equal Hardware{}'s and have no
// source are left out. Throws std::invalid_argument where another number's source is missing or
// bad.
std::string WriteHardware(const Hardware& hardware);

// The number's own source, else that of the innermost map which holds it; "" where there is none.
std::string SourceOf(const Hardware& hardware, const std::string& key);

// The names that `kernels` can have, in the order of kinds.h.
const std::vector<std::string>& KindsOfKernels();
// Whether steps take equal times by both kinds, all else being equal. `bf16`: they multiply bf16;
// other products, and all other operations, differ by the width of vectors alone.
bool SameRates(const std::string& kind, const std::string& other, bool bf16);

// "FIGURE CURVE X" from every source of the form "seen", in order, each once.
std::vector<std::string> PointsSeen(const Hardware& hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RECIPE_HARDWARE_H_
