#include "trainer/fsdp/model_layout.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "trainer/fsdp/keep_fp32.h"

namespace fsdp {
namespace {

// The first segment with a parameter to train; the last where there is none (evaluation alone).
int FirstTrainable(const Model& model) {
  const std::vector<ModelSegment>& segments = model.segments();
  const auto trains = [](const Parameter* p) { return p->trainable(); };
  for (const ModelSegment& segment : segments) {  // Its gradient is whole with the first segment's.
    if (std::ranges::any_of(segment.reads, trains)) return 0;
  }
  const auto first = std::find_if(segments.begin(), segments.end() - 1, [&](const auto& segment) {
    return std::ranges::any_of(segment.parameters, trains);
  });
  return static_cast<int>(first - segments.begin());
}

}  // namespace

std::set<int> UnitsOnHost(const ExecutorOptions& options, const Layout& layout) {
  std::set<int> all, units;
  if (!options.cpu_offload.optimizer) return units;
  int listed = 0;
  for (const int u : layout.unit_of_segment) {
    if (layout.TrainableFlatParameters(u).empty() || !all.insert(u).second) continue;
    const double share = options.cpu_offload.optimizer_share.value_or(0);
    const bool stays = std::floor((listed + 1) * share) > std::floor(listed * share);
    ++listed;
    if (!stays) units.insert(u);
  }
  return units;
}

std::set<int> UnitsFetched(const ExecutorOptions& options, const Layout& layout, Mode mode) {
  std::set<int> units;
  const std::set<int> on_host = UnitsOnHost(options, layout);
  if (options.cpu_offload.params) {
    units = on_host;
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      if (layout.TrainableFlatParameters(u).empty()) units.insert(u);
    }
  }
  // Averages lie beside the masters. Where nothing is gathered they come as a whole.
  if (mode == Mode::kEval && options.averages && layout.shards > 1) {
    units.insert(on_host.begin(), on_host.end());
  }
  return units;
}

DTypeRule DTypeRuleOf(const ExecutorOptions& options) {
  if (options.dtypes) return options.dtypes;
  const bool quantized = options.quantize.gather != FsdpOptions::Quantize::Gather::kNone ||
                         options.quantize.reduce != FsdpOptions::Quantize::Reduce::kNone;
  return [=, mixed = options.mixed_precision, state = options.state_dtype](const Parameter& p) {
    if (KeptInFp32(mixed.keep_fp32, p)) return DTypes();
    return DTypes{.master = mixed.master_dtype,
                  .state = state,
                  .compute = mixed.param_dtype,
                  .grad = mixed.grad_dtype,
                  .reduce = mixed.reduce_dtype,
                  .quantized = quantized};
  };
}

std::vector<SegmentShape> ShapesOf(const Model& model, const DTypeRule& dtypes) {
  std::vector<SegmentShape> shapes;
  std::set<const Parameter*> read_elsewhere;
  for (const ModelSegment& segment : model.segments()) {
    read_elsewhere.insert(segment.reads.begin(), segment.reads.end());
  }
  for (const ModelSegment& segment : model.segments()) {
    shapes.push_back({segment.name, segment.is_block, {}, segment.own_unit});
    for (const Parameter* p : segment.parameters) {
      shapes.back().parameters.push_back({p->name(), p->shape(), !p->trainable(),
                                          dtypes ? dtypes(*p) : DTypes(),
                                          read_elsewhere.contains(p)});
    }
    shapes.back().reads_shared =
        !segment.reads.empty() ||
        std::ranges::any_of(shapes.back().parameters, &ParameterShape::shared);
  }
  return shapes;
}

Mesh MeshFor(const ExecutorOptions& options, int rank, int world, std::vector<int> ranks) {
  int shards = options.sharding_strategy == Strategy::kNoShard ? 1 : world;
  if (IsHybrid(options.sharding_strategy)) {
    if (!options.shard_size) throw std::invalid_argument("[MeshFor] hybrid without a shard_size");
    shards = static_cast<int>(*options.shard_size);
  }
  const bool hops = options.quantize.reduce != FsdpOptions::Quantize::Reduce::kNone;
  return Mesh(rank, world, shards, std::move(ranks),
              static_cast<int>(options.reshard_after_forward.value_or(1)),
              hops ? options.inside : 0);
}

namespace {

// Where units are updated, what comes back of that, and what is cast where nothing is gathered.
void PlaceUnits(const ExecutorOptions& options, const Layout& layout, ScheduleOptions& schedule) {
  const int units = static_cast<int>(layout.units.size());
  for (int u = 0; u < units; ++u) {
    if (layout.TrainableFlatParameters(u).empty()) schedule.frozen_units.insert(u);
  }
  schedule.host_units = UnitsOnHost(options, layout);
  schedule.fetched_units = UnitsFetched(options, layout, schedule.mode);
  const bool cast_in_gather =
      options.mixed_precision.cast == FsdpOptions::MixedPrecision::CastIn::kGather;
  const auto is_cast = [&](int f) {
    const DTypes& d = layout.flat_parameters[f].dtypes;
    return d.compute != d.master;
  };
  for (const int u : schedule.host_units) {
    const bool averages = options.averages && schedule.fetched_units.count(u) > 0;
    if (options.cpu_offload.spill && (schedule.mode == Mode::kTrain || averages)) {
      const bool returns = !options.cpu_offload.params && !cast_in_gather;
      for (const ShardPart& part : PartsOfUnit(layout, u, options.spill_part)) {
        schedule.spilled_units[u].push_back(returns && is_cast(part.flat));
      }
    }
    if (!cast_in_gather && std::ranges::any_of(layout.TrainableFlatParameters(u), is_cast)) {
      schedule.copied_units.insert(u);
    }
  }
  for (int u = 0; schedule.shards == 1 && cast_in_gather && u < units; ++u) {
    if (schedule.host_units.count(u) > 0 || schedule.fetched_units.count(u) > 0) continue;
    if (std::ranges::none_of(layout.units[u].flat_parameters, is_cast)) continue;
    schedule.cast_units.insert(u);
    if (std::ranges::none_of(layout.TrainableFlatParameters(u), is_cast)) {
      schedule.frozen_cast_units.insert(u);
    }
  }
}

}  // namespace

Schedule ScheduleFor(const ExecutorOptions& options, const Model& model, const Mesh& mesh,
                     Mode mode) {
  ScheduleOptions schedule{options};
  schedule.mode = mode;
  schedule.shards = mesh.shard_size();
  schedule.replicas = mesh.replicate_size();
  schedule.secondary = mesh.secondary_size();
  schedule.inside = mesh.inside_size();
  const Layout layout =
      MakeLayout(ShapesOf(model, DTypeRuleOf(options)), options.auto_wrap, schedule.shards);
  schedule.unit_of_segment = layout.unit_of_segment;
  PlaceUnits(options, layout, schedule);
  schedule.backward_from = FirstTrainable(model);
  for (const ModelSegment& segment : model.segments()) {
    const int s = static_cast<int>(schedule.recomputed.size());
    if (!segment.read_in_backward) schedule.not_read_backward.insert(s);
    if (layout.reads_root[s]) schedule.reads_root.insert(s);
    schedule.recomputed.push_back(options.recompute == Recompute::kFull && segment.is_block);
  }
  // Of blocks; what the last segments keep is needed again at once.
  const int last = static_cast<int>(model.segments().size()) - 2;
  for (int s = schedule.backward_from; s < last; ++s) {
    if (options.activation_offload == ActivationOffload::kNone || mode != Mode::kTrain) break;
    if (model.segments()[s].is_block) schedule.offloaded_segments.insert(s);
  }
  schedule.micro_batches = mode == Mode::kTrain ? options.micro_batches : 1;
  schedule.poison = options.poison;
  return MakeSchedule(schedule);
}

}  // namespace fsdp
