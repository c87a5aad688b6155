#include "trainer/simulate/price_list.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "trainer/core/errors.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/ops/grouped_linear.h"
#include "trainer/ops/tiled_attention.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

bool Multiplies(const KernelCost& kernel) {
  return kernel.kind == KernelKind::kProduct || kernel.kind == KernelKind::kAttention;
}

// The rate of a whole operation counts its products' FLOPs: the rest of the operation is in that
// time.
double OwnSeconds(const KernelCost& kernel, double flops_per_s, double terms, double sides) {
  if (!Multiplies(kernel)) return 0;
  const double ends = terms / kernel.product.MeanK();
  return kernel.cost.flops * (1 + ends + sides * SidesOf(kernel)) / flops_per_s;
}

}  // namespace

double SidesOf(const KernelCost& kernel) {
  if (kernel.kind != KernelKind::kProduct) return 0;
  return 1 / kernel.product.MeanM() +
         1 / static_cast<double>(std::max<int64_t>(kernel.product.n, 1));
}

double PriceList::Required(const std::optional<double>& rate, const char* key,
                           const std::string& op) const {
  if (rate) return *rate;
  throw ConfigError("the hardware file of " + hardware_.name + " has no " + key +
                    ", and this step has " + op);
}

const std::optional<double>& PriceList::DataSheetRate(DType dtype) const {
  return dtype == DType::kBFloat16  ? hardware_.bf16_flops
         : dtype == DType::kFloat16 ? hardware_.fp16_flops
                                    : hardware_.fp32_flops;
}

double PriceList::ProductRate(DType dtype, const std::string& op) const {
  const char* const key = dtype == DType::kBFloat16  ? "bf16_flops"
                          : dtype == DType::kFloat16 ? "fp16_flops"
                                                     : "fp32_flops";
  return Required(DataSheetRate(dtype), key, op) * hardware_.product_share;
}

double PriceList::ProductSeconds(const Product& product, int64_t at_once,
                                 const std::string& op) const {
  double rate = ProductRate(product.dtype, op);
  if (!hardware_.multiprocessors) return product.flops() / rate;
  const int64_t all = *hardware_.multiprocessors;
  int64_t multiprocessors = all;
  if (shared_.products() > 0 && product.groups == 1) {  // Those of groups are by our own kernels.
    multiprocessors = shared_.products();
    rate *= static_cast<double>(multiprocessors) / static_cast<double>(all);
  }
  return product.flops() / ProductRateInWaves(product, rate, multiprocessors, hardware_.tile_terms,
                                              at_once, expert_load_);
}

double PriceList::AttentionRate(int64_t head_dim, const std::string& op) const {
  const bool backward = op.find("backward") != std::string::npos;
  const auto& of_64 =
      backward ? hardware_.attention_64_backward_flops : hardware_.attention_64_forward_flops;
  if (head_dim <= 64 && of_64) return *of_64;
  return backward ? Required(hardware_.attention_backward_flops, "attention_backward_flops", op)
                  : Required(hardware_.attention_forward_flops, "attention_forward_flops", op);
}

const double* PriceList::OwnRate(const std::map<std::string, double>& rates,
                                 const std::string& op) const {
  if (rates.empty()) return nullptr;
  auto found = rates.find(op + ", " + std::string(Name(dtype_)));
  if (found == rates.end()) found = rates.find(op);
  return found == rates.end() ? nullptr : &found->second;
}

double PriceList::FloorSeconds(const KernelCost& kernel, double bytes,
                               const std::string& op) const {
  if (const double* own = OwnRate(hardware_.op_flops_per_s, op)) {
    const double *terms = OwnRate(hardware_.op_terms, op), *sides = OwnRate(hardware_.op_sides, op);
    return OwnSeconds(kernel, *own, terms ? *terms : 0, sides ? *sides : 0);
  }
  return SharedSeconds(kernel, bytes, op);
}

std::vector<double> PriceList::FloorSeconds(const std::vector<KernelCost>& kernels,
                                            const std::vector<double>& bytes,
                                            const std::string& op) const {
  const auto seconds = [&](const auto& of) {
    std::vector<double> all(kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) all[i] = (this->*of)(kernels[i], bytes[i], op);
    return all;
  };
  using OfKernel = double (PriceList::*)(const KernelCost&, double, const std::string&) const;
  const OfKernel own = &PriceList::FloorSeconds, shared = &PriceList::SharedSeconds;
  std::vector<double> least = seconds(own);
  const bool known = std::all_of(kernels.begin(), kernels.end(), [&](const KernelCost& kernel) {
    return HasSharedRates(kernel, op);
  });
  if (OwnRate(hardware_.op_flops_per_s, op) == nullptr || !known) return least;
  std::vector<double> other = seconds(shared);
  const auto sum = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  return sum(other) < sum(least) ? other : least;
}

bool PriceList::HasSharedRates(const KernelCost& kernel, const std::string& op) const {
  if (!Multiplies(kernel)) return hardware_.copy_bytes_per_s.has_value();
  const bool product = kernel.kind == KernelKind::kProduct || !IsTiled(kernel);
  if (product) return DataSheetRate(kernel.product.dtype).has_value();
  const bool backward = op.find("backward") != std::string::npos;
  const Hardware& h = hardware_;
  const auto& of_64 = backward ? h.attention_64_backward_flops : h.attention_64_forward_flops;
  const auto& of_all = backward ? h.attention_backward_flops : h.attention_forward_flops;
  return of_all || (of_64 && kernel.product.k <= 64);
}

double PriceList::SharedSeconds(const KernelCost& kernel, double bytes,
                                const std::string& op) const {
  const double* own = OwnRate(hardware_.op_bytes_per_s, op);
  const auto copied = [&] {
    const double rate = Required(hardware_.copy_bytes_per_s, "copy_bytes_per_s", op);
    return bytes / (own != nullptr ? std::max(rate, *own) : rate);
  };
  const double moved = bytes == 0 ? 0 : copied();
  switch (kernel.kind) {
    case KernelKind::kProduct:
      return std::max(moved, ProductSeconds(kernel.product, /*at_once=*/1, op));
    case KernelKind::kAttention:
      if (!IsTiled(kernel)) {
        return std::max(moved, ProductSeconds(kernel.product, kernel.product.count, op));
      }
      return std::max(moved, kernel.cost.flops / AttentionRate(kernel.product.k, op));
    case KernelKind::kMemory:
    case KernelKind::kCopy:
      return moved;
    case KernelKind::kLink:
      return 0;
  }
  return 0;
}

double PriceList::RateOf(StepResource resource, const std::string& op) const {
  switch (resource) {
    case StepResource::kToHost:
    case StepResource::kToDevice:
      return Required(hardware_.host_link_bytes_per_s, "host_link_bytes_per_s", op);
    case StepResource::kHost:
      return Required(hardware_.host_copy_bytes_per_s, "host_copy_bytes_per_s", op);
    case StepResource::kDiskRead:
      return Required(hardware_.disk_read_bytes_per_s, "disk_read_bytes_per_s", op);
    case StepResource::kDiskWrite:
      return Required(hardware_.disk_write_bytes_per_s, "disk_write_bytes_per_s", op);
    case StepResource::kDevice:
      break;
  }
  return 0;
}

double PriceList::KernelSeconds(const KernelCost& kernel, const std::string& op) const {
  if (kernel.kind == KernelKind::kLink) return 0;
  const OnGpu gpu = on_cpu() ? OnGpu{.launches = kernel.gpu.launches > 0}
                             : OnGpuByLibrary(kernel, deterministic_);
  const double bytes = (kernel.cost.bytes_read + kernel.cost.bytes_written + gpu.extra_bytes) *
                       (Multiplies(kernel) ? 1 : hardware_.unfused_bytes);
  double seconds = FloorSeconds(kernel, bytes, op);
  if (const double* own = OwnRate(hardware_.op_bytes_per_s, op)) {
    seconds = std::max(seconds, bytes / *own);
  }
  return seconds / hardware_.reached + static_cast<double>(gpu.launches) * hardware_.launch_s;
}

SimWork PriceList::WorkOf(const Operation& operation, std::string_view stream, int threads,
                          int ranks) const {
  const StepResource resource = ResourceOf(operation, stream);
  const std::string op = operation.name;
  SimWork work;
  if (resource != StepResource::kDevice) {
    constexpr SimResource kThere[] = {SimResource::kKernels,  SimResource::kToHost,
                                      SimResource::kToDevice, SimResource::kHost,
                                      SimResource::kDiskRead, SimResource::kDiskWrite};
    work.resource = kThere[static_cast<size_t>(resource)];
    work.seconds = BytesThere(operation, resource) / RateOf(resource, op);
    return work;
  }
  // Loads of batches are ahead of the step that needs them, and no device's.
  if (operation.kernels.host && !on_cpu()) return work;
  for (const KernelCost& kernel : operation.costs) work.seconds += KernelSeconds(kernel, op);
  work.resource = SimResource::kKernels;
  if (on_cpu() && hardware_.cores) {
    const auto cores = static_cast<double>(*hardware_.cores);
    work.seconds /= std::min(1.0, threads / cores);
    work.share = std::min(1.0, threads * ranks / cores);
  }
  return work;
}

std::vector<SimOverlap> PriceList::Overlaps() const {
  if (on_cpu()) return {};
  double kernels = hardware_.kernels_beside_collectives;
  if (shared_.products() > 0) {
    kernels = std::max(kernels, static_cast<double>(shared_.products()) / shared_.all);
  }
  std::vector<SimOverlap> overlaps;
  for (const SimResource links : {SimResource::kInside, SimResource::kBetween}) {
    overlaps.push_back({SimResource::kKernels, links, kernels});
    overlaps.push_back({links, SimResource::kKernels, hardware_.collectives_beside_kernels});
  }
  return overlaps;
}

PriceList PricesOf(const ResolvedRun& run, const Hardware& hardware) {
  return {hardware, run.recipe->run.deterministic, run.recipe->fsdp.mixed_precision.param_dtype,
          run.place.expert_load, run.multiprocessors};
}

namespace {

// Sides of a tile, and its rate as a share of the largest one's: it reads more for as many FLOPs.
// Fitted to products of an H100 and a B200 at once (tools/paper/parts.py).
struct Tile {
  int64_t rows, columns;
  double share;
};
constexpr std::array<Tile, 8> kTiles = {{{128, 256, 1.0},
                                         {256, 128, 1.0},
                                         {128, 128, 0.9},
                                         {64, 256, 0.8},
                                         {256, 64, 0.8},
                                         {64, 128, 0.75},
                                         {128, 64, 0.75},
                                         {64, 64, 0.55}}};
constexpr int64_t kMostParts = 16, kFewestTerms = 256;
constexpr int64_t kEndsOfParts = 3;      // Begins and ends that a tile in parts takes.
constexpr double kTermsOfFast = 2048.0;  // Terms of whole waves as fast as a huge product.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The work of all waves: elements of tiles on all multiprocessors, times terms that there is time
// for.
double WorkOf(const Product& p, int64_t multiprocessors, int64_t tile_terms, int64_t at_once) {
  double least = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const int64_t tiles = CeilDiv(p.m, tile.rows) * CeilDiv(p.n, tile.columns) * at_once;
    const auto wave = static_cast<double>(multiprocessors * tile.rows * tile.columns);
    for (int64_t parts = 1; parts <= kMostParts; ++parts) {
      const int64_t terms = CeilDiv(p.k, parts);
      if (parts > 1 && terms < kFewestTerms) break;
      const auto waves = static_cast<double>(CeilDiv(tiles * parts, multiprocessors));
      const int64_t ends = (parts > 1 ? kEndsOfParts : 1) * tile_terms;
      least = std::min(least, waves * wave * static_cast<double>(terms + ends) / tile.share);
    }
  }
  return least;
}

// The rows of a product's groups: the busiest one's, and those of each other.
struct GroupRows {
  double busiest, other;
  int64_t used;  // Groups with rows.
};

GroupRows RowsOfGroups(const Product& p, double expert_load) {
  const auto rows = static_cast<double>(p.a_transposed ? p.k : p.m);
  const auto groups = static_cast<double>(p.groups);
  const double busiest = std::min(expert_load, groups) * rows / groups;
  // Nothing is left beside the busiest group but what rounding leaves.
  const double other = expert_load >= groups ? 0 : (rows - busiest) / (groups - 1);
  return {busiest, other, other > 0 ? p.groups : 1};
}

// WorkOf() for a product of groups.
double WorkOfGroups(const Product& p, int64_t multiprocessors, int64_t tile_terms,
                    double expert_load) {
  const int64_t side = GroupedTile(p.m, p.n, p.groups, p.a_transposed);
  const auto tile = std::find_if(kTiles.begin(), kTiles.end(), [&](const Tile& one) {
    return one.rows == side && one.columns == side;
  });
  const GroupRows rows = RowsOfGroups(p, expert_load);
  const auto tiles_of = [side](double of) {
    const auto full = static_cast<double>(side);
    return of == 0 ? 0 : std::max(1.0, of / full + (full - 1) / (2 * full));
  };
  const auto others = static_cast<double>(rows.used - 1);
  const auto columns = static_cast<double>(CeilDiv(p.n, side));
  const auto at_once = static_cast<double>(multiprocessors), ends = static_cast<double>(tile_terms);
  double terms = 0;  // All waves together.
  if (p.a_transposed) {
    const double tiles = static_cast<double>(rows.used * CeilDiv(p.m, side)) * columns;
    const double mean = static_cast<double>(p.k) / static_cast<double>(rows.used);
    terms = std::max(std::ceil(tiles / at_once) * (mean + ends), rows.busiest + ends);
  } else {
    const double tiles = (tiles_of(rows.busiest) + others * tiles_of(rows.other)) * columns;
    terms = std::ceil(tiles / at_once) * (static_cast<double>(p.k) + ends);
  }
  return terms * at_once * static_cast<double>(side * side) / tile->share;
}

}  // namespace

double ProductRateInWaves(const Product& p, double rate, int64_t multiprocessors,
                          int64_t tile_terms, int64_t at_once, double expert_load) {
  const double needed = static_cast<double>(p.m) * static_cast<double>(p.n) *
                        static_cast<double>(p.k) * static_cast<double>(at_once);
  const double work = p.groups > 1 ? WorkOfGroups(p, multiprocessors, tile_terms, expert_load)
                                   : WorkOf(p, multiprocessors, tile_terms, at_once);
  const double used = needed / work;
  const double of_fast = kTermsOfFast / (kTermsOfFast + static_cast<double>(tile_terms));
  return rate * std::min(1.0, used / of_fast);
}

}  // namespace fsdp
