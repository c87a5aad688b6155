#include "trainer/fsdp/model_layout.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "trainer/fsdp/matrix_layout.h"
#include "trainer/nn/model.h"
#include "trainer/ops/state_codes.h"

namespace fsdp {
namespace {

bool Matches(const std::string& glob, const std::string& name) {
  return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

// The first glob that matches.
std::optional<size_t> GlobOf(const std::vector<std::string>& globs, const std::string& name) {
  for (size_t i = 0; i < globs.size(); ++i) {
    if (Matches(globs[i], name)) return i;
  }
  return std::nullopt;
}

bool AnyTrains(const std::vector<Parameter*>& parameters) {
  return std::ranges::any_of(parameters, &Parameter::trainable);
}

// The first segment with a parameter to train; the last where there is none (evaluation alone).
int FirstTrainable(const Model& model) {
  const std::vector<ModelSegment>& segments = model.segments();
  if (!model.tables().empty()) return 0;  // The first segment reads them.
  // A gradient of several segments is whole with the first segment's.
  for (const ModelSegment& segment : segments) {
    if (AnyTrains(segment.reads)) return 0;
  }
  const auto first =
      std::find_if(segments.begin(), segments.end() - 1,
                   [](const ModelSegment& segment) { return AnyTrains(segment.parameters); });
  return static_cast<int>(first - segments.begin());
}

DType StateOf(const Parameter& p, DType otherwise, const std::vector<StateChoice>& choices) {
  DType dtype = otherwise;
  for (const StateChoice& choice : choices) {
    if (!Matches(choice.match, p.slices().front().name)) continue;
    dtype = choice.dtype.value_or(dtype);
    break;
  }
  return dtype == DType::kUInt8 && !CanHaveCodes(p) ? DType::kFloat32 : dtype;
}

DTypeRule DTypeRuleOf(const ExecutorOptions& options) {
  if (options.dtypes) return options.dtypes;
  const bool quantized = options.quantize.gather != FsdpOptions::Quantize::Gather::kNone ||
                         options.quantize.reduce != FsdpOptions::Quantize::Reduce::kNone;
  return [=, mixed = options.mixed_precision, all = options.state_dtype,
          choices = options.state_choices](const Parameter& p) {
    const bool kept = KeptInFp32(mixed.keep_fp32, p);
    const DType state = StateOf(p, kept ? DType::kFloat32 : all, choices);
    if (kept) return DTypes{.state = state};
    return DTypes{.master = mixed.master_dtype,
                  .state = state,
                  .compute = mixed.param_dtype,
                  .grad = mixed.grad_dtype,
                  .reduce = mixed.reduce_dtype,
                  .quantized = quantized};
  };
}

}  // namespace

std::set<int> UnitsOnHost(const ExecutorOptions& options, const Layout& layout) {
  std::set<int> all, units;
  if (!options.cpu_offload.optimizer) return units;
  int listed = 0;
  for (const int u : layout.unit_of_segment) {
    if (layout.TrainableFlatParameters(u).empty() || !all.insert(u).second) continue;
    const double share = options.cpu_offload.optimizer_share;
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

std::vector<SegmentShape> ShapesOf(const Model& model, const DTypeRule& dtypes,
                                   const WholeRule& whole) {
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
      ParameterShape& shape = shapes.back().parameters.back();
      shape.dtypes.whole = whole && p->trainable() && whole(segment, *p);
      if (p->code() == WeightCode::kNone) continue;
      shape.dtypes = {.master = DType::kUInt8,
                      .compute = DType::kUInt8,
                      .grad = DType::kUInt8,
                      .reduce = DType::kUInt8,
                      .code = p->code()};
      shape.coded_bytes = p->coded_bytes();
    }
    shapes.back().reads_shared =
        !segment.reads.empty() ||
        std::ranges::any_of(shapes.back().parameters, &ParameterShape::shared);
  }
  return shapes;
}

Layout LayoutFor(const ExecutorOptions& options, const Model& model, int shards) {
  return MakeLayout(ShapesOf(model, DTypeRuleOf(options), options.whole), options.auto_wrap,
                    shards);
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

// Where the unit is updated, what comes back of that, and what is cast where nothing is gathered.
UnitRow RowOfUnit(const ExecutorOptions& options, const Layout& layout, int u,
                  const ScheduleOptions& schedule, bool on_host, bool fetched) {
  const bool cast_in_gather =
      options.mixed_precision.cast == FsdpOptions::MixedPrecision::CastIn::kGather;
  const auto is_cast = [&](int f) {
    const DTypes& d = layout.flat_parameters[f].dtypes;
    return d.compute != d.master;
  };
  const std::span<const int> trained = layout.TrainableFlatParameters(u);
  const bool casts_trained = std::ranges::any_of(trained, is_cast);
  UnitRow row{.trains = !trained.empty(), .on_host = on_host, .fetched = fetched};
  row.copied = on_host && !cast_in_gather && casts_trained;
  const bool spills = schedule.mode == Mode::kTrain || (options.averages && fetched);
  if (on_host && options.cpu_offload.spill && spills) {
    const bool returns = !options.cpu_offload.params && !cast_in_gather;
    for (const ShardPart& part : PartsOfUnit(layout, u, options.spill_part)) {
      if (!part.momentum) {
        row.spilled.push_back(returns && is_cast(part.flat));
      } else if (schedule.mode == Mode::kTrain) {
        ++row.momentum_parts;
      }
    }
  }
  row.cast = schedule.shards == 1 && cast_in_gather && !on_host && !fetched &&
             std::ranges::any_of(layout.units[u].flat_parameters, is_cast);
  row.cast_frozen = row.cast && !casts_trained;
  row.whole =
      schedule.mode == Mode::kTrain && !schedule.factored &&
      std::ranges::any_of(trained, [&](int f) { return layout.flat_parameters[f].dtypes.whole; });
  return row;
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
  const Layout layout = LayoutFor(options, model, schedule.shards);
  schedule.factored = options.factored && mode == Mode::kTrain;
  const std::set<int> on_host = UnitsOnHost(options, layout);
  const std::set<int> fetched = UnitsFetched(options, layout, mode);
  for (int u = 0; u < std::ssize(layout.units); ++u) {
    schedule.units.push_back(
        RowOfUnit(options, layout, u, schedule, on_host.contains(u), fetched.contains(u)));
  }
  if (schedule.Any(&UnitRow::whole)) {
    schedule.owners = MatrixLayout(model, layout, mesh.world_size()).OwnersHash();
  }
  schedule.backward_from = FirstTrainable(model);
  // Backward needs the last segments' activations again at once.
  const int last = static_cast<int>(model.segments().size()) - 2;
  const bool offloads =
      options.activation_offload != ActivationOffload::kNone && mode == Mode::kTrain;
  const bool sums = options.batch_norm_sync && mesh.world_size() > 1 && mode == Mode::kTrain;
  std::set<int> trained_units;  // So far. Tied segments read what an earlier one lists.
  for (const ModelSegment& segment : model.segments()) {
    const int s = static_cast<int>(schedule.segments.size());
    const int unit = layout.unit_of_segment[s];
    const bool trained = s >= schedule.backward_from && s < last;
    if (AnyTrains(segment.parameters) || AnyTrains(segment.reads)) trained_units.insert(unit);
    schedule.segments.push_back(
        {.unit = unit,
         .recomputed = options.recompute == Recompute::kFull && segment.is_block,
         .read_in_backward = segment.read_in_backward,
         .reads_root = layout.reads_root[s],
         .frozen = !trained_units.contains(unit),
         .offloaded = offloads && segment.is_block && segment.keeps && trained,
         .batch_sums = sums ? segment.batch_norms : 0});
  }
  schedule.micro_batches = mode == Mode::kTrain ? options.micro_batches : 1;
  schedule.tables = !model.tables().empty();
  schedule.poison = options.poison;
  return MakeSchedule(schedule);
}

bool CanHaveCodes(const Parameter& parameter) {
  return parameter.trainable() &&
         std::ranges::all_of(parameter.slices(), [](const ParameterSlice& slice) {
           return slice.shape.rank() > 1 && slice.shape.NumElements() >= kLeastCoded &&
                  slice.begin % kCodeBlock == 0;
         });
}

bool KeptInFp32(const std::vector<std::string>& globs, const Parameter& parameter) {
  return parameter.is_plain() || std::any_of(parameter.slices().begin(), parameter.slices().end(),
                                             [&](const ParameterSlice& slice) {
                                               return GlobOf(globs, slice.name).has_value();
                                             });
}

std::vector<KeepMistake> KeepMistakes(const std::vector<std::string>& globs, const Model& model) {
  std::vector<KeepMistake> mistakes;
  std::vector<bool> matched(globs.size());
  std::string some_name;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* parameter : segment.parameters) {
      std::optional<size_t> first;
      std::string kept, others;
      for (const ParameterSlice& slice : parameter->slices()) {
        some_name = slice.name;
        for (size_t i = 0; i < globs.size(); ++i) {
          if (Matches(globs[i], slice.name)) matched[i] = true;
        }
        const std::optional<size_t> glob = GlobOf(globs, slice.name);
        if (glob && !first) first = glob;
        (glob ? kept : others) += " " + slice.name;
      }
      if (!first || others.empty()) continue;
      mistakes.push_back({*first, "one matrix holds slices that `" + globs[*first] +
                                      "` matches and others, and has one dtype. It matches:" +
                                      kept + "; not:" + others});
    }
  }
  for (size_t i = 0; i < globs.size(); ++i) {
    if (matched[i]) continue;
    mistakes.push_back({i, "`" + globs[i] + "` matches no parameter; a name is " + some_name});
  }
  return mistakes;
}

}  // namespace fsdp
