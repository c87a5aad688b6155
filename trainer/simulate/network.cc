#include "trainer/simulate/network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/core/errors.h"

namespace fsdp {

Network::Network(const Hardware& hardware, int world, int ranks_per_host, const SumsOfGpus& sums)
    : hardware_(hardware),
      rates_(hardware.network.value_or(NetworkRates())),
      ranks_per_host_(ranks_per_host),
      sums_(sums) {
  if (world > 1 && !hardware.network) {
    throw ConfigError("the hardware file of " + hardware.name +
                      " has no network, and the job has " + std::to_string(world) + " ranks");
  }
}

double Network::Required(bool between, std::optional<double> LinkRates::*number,
                         const char* key) const {
  const std::optional<double>& value = (between ? rates_.between : rates_.inside).*number;
  if (value) return *value;
  throw ConfigError("the hardware file of " + hardware_.name + " has no network." +
                    (between ? "between." : "inside.") + key + ", and ranks " +
                    (between ? "on several hosts" : "of one host") + " work together");
}

Network::Reach Network::ReachOf(const RankGroup& group) const {
  std::vector<int> on_host;
  Reach reach{.size = group.size(), .hosts = 0};
  for (const int rank : group.ranks()) {
    const auto host = static_cast<size_t>(rank / ranks_per_host_);
    if (host >= on_host.size()) on_host.resize(host + 1);
    if (on_host[host]++ == 0) ++reach.hosts;
    reach.on_a_host = std::max(reach.on_a_host, on_host[host]);
  }
  return reach;
}

double Network::RingRate(const Reach& reach) const {
  double rate = std::numeric_limits<double>::infinity();
  if (reach.on_a_host > 1) {
    rate = Required(/*between=*/false, &LinkRates::ring_bytes_per_s, "ring_bytes_per_s");
  }
  if (reach.hosts == 1) return rate;
  const double host = Required(/*between=*/true, &LinkRates::ring_bytes_per_s, "ring_bytes_per_s");
  return std::min(rate, host * reach.on_a_host / ranks_per_host_);
}

// Where `bytes`, those of the whole tensor, are gathered, or summed up to shards.
double Network::RingSeconds(const Reach& reach, double bytes) const {
  const double ramp = (reach.hosts > 1 ? rates_.between : rates_.inside).ramp_bytes;
  const int far = reach.hosts - 1, near = reach.size - 1 - far;
  const double sent = bytes * (reach.size - 1) / reach.size;
  return (near > 0 ? near * RingStep(/*between=*/false) : 0) +
         (far > 0 ? far * RingStep(/*between=*/true) : 0) + (sent + ramp) / RingRate(reach);
}

double Network::TreeSeconds(const Reach& reach, double bytes) const {
  const double ramp = (reach.hosts > 1 ? rates_.between : rates_.inside).ramp_bytes;
  const double levels = std::ceil(std::log2(reach.hosts));
  return 2 * ((reach.on_a_host > 1 ? (reach.on_a_host - 1) * RingStep(/*between=*/false) : 0) +
              (levels > 0 ? levels * RingStep(/*between=*/true) : 0) +
              (bytes + ramp) / RingRate(reach));
}

// Where a rank has `bytes` for all together.
double Network::ExchangeSeconds(const Reach& reach, double bytes) const {
  const int near = reach.on_a_host - 1, far = reach.size - reach.on_a_host;
  double latency = 0, longest = 0;
  const auto exchange = [&](bool between, int peers, double ranks) {
    if (peers == 0) return;
    const double rate =
        Required(between, &LinkRates::all_to_all_bytes_per_s, "all_to_all_bytes_per_s") / ranks;
    const double ramp = (between ? rates_.between : rates_.inside).ramp_bytes;
    latency += peers * Required(between, &LinkRates::all_to_all_step_s, "all_to_all_step_s");
    longest = std::max(longest, (bytes / reach.size * peers + ramp) / rate);
  };
  exchange(/*between=*/false, near, /*ranks=*/1);
  exchange(/*between=*/true, far, ranks_per_host_);
  return latency + longest;
}

double Network::CopySeconds(double bytes) const {
  return hardware_.copy_bytes_per_s ? bytes / *hardware_.copy_bytes_per_s : 0;
}

double Network::ReduceSeconds(const Reach& reach, const CollectiveCall& call) const {
  const auto shard = static_cast<double>(call.bytes());
  const double full = shard * reach.size, ring = RingSeconds(reach, full);
  if (hardware_.device == Hardware::Device::kCpu) return ring;
  const bool widens = call.result != call.dtype;
  const double result = static_cast<double>(call.n) * SizeOf(call.result);
  if (sums_.deterministic || (widens && sums_.exact_into_fp32)) {
    return ExchangeSeconds(reach, full) + CopySeconds(full + result);
  }
  if (!widens) return ring;
  const double divided = call.dtype == DType::kFloat16 ? 2 * full : 0;
  return ring + CopySeconds(divided + shard + result);
}

double Network::AllReduceSeconds(const Reach& reach, double bytes) const {
  const double ring = RingSeconds(reach, bytes);
  if (sums_.deterministic && hardware_.device != Hardware::Device::kCpu) {
    const double all = bytes * reach.size;
    if (bytes <= kNcclWholeBytes) return RingSeconds(reach, all) + CopySeconds(all + bytes);
    return ExchangeSeconds(reach, bytes) + CopySeconds(bytes + bytes / reach.size) + ring;
  }
  return std::min(2 * ring, TreeSeconds(reach, bytes));
}

namespace {

// An uneven exchange lasts as long as its busiest rank sends or receives.
double BytesOfBusiest(const ExchangeLayout& layout, DType dtype) {
  int64_t most = 0;
  for (int r = 0; r < layout.size(); ++r) {
    most = std::max({most, layout.ToOthers(r), layout.FromOthers(r)});
  }
  // In an even exchange a rank keeps a part of all that it has for itself.
  const double even = static_cast<double>(layout.size()) / std::max(1, layout.size() - 1);
  return static_cast<double>(most * SizeOf(dtype)) * even;
}

}  // namespace

SimWork Network::WorkOf(const Reach& reach, const CollectiveCall& call) const {
  SimWork work;
  if (reach.size == 1) return work;
  const auto bytes = static_cast<double>(call.bytes());
  switch (call.kind) {
    case Collective::kAllGather:
      work.seconds = RingSeconds(reach, bytes * reach.size);
      break;
    case Collective::kReduceScatter:
      work.seconds = ReduceSeconds(reach, call);
      break;
    case Collective::kAllReduce:
      work.seconds = AllReduceSeconds(reach, bytes);
      break;
    case Collective::kAllToAll:
      work.seconds = ExchangeSeconds(
          reach, call.layout ? BytesOfBusiest(*call.layout, call.dtype) : bytes * reach.size);
      break;
    case Collective::kBroadcast:
      work.seconds = RingSeconds(reach, bytes);
      break;
  }
  work.seconds += rates_.collective_s;
  work.resource = reach.hosts > 1 ? SimResource::kBetween : SimResource::kInside;
  if (hardware_.device == Hardware::Device::kCpu && hardware_.cores) {  // A core copies.
    work.resource = SimResource::kKernels;
    work.share = std::min(1.0, ranks_per_host_ / static_cast<double>(*hardware_.cores));
  }
  return work;
}

}  // namespace fsdp
