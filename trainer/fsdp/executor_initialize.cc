// Initial values of elements, and a base: coded weights, and the frozen ones beside them.
// Tests: tests/trainer/engine/coded_weights_test.cc
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/records.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/weight_codes.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kPieceSums = int64_t{1} << 16;  // Sums in a message: 512 KiB.

// Records of one slice in a shard: [first, first + count) of it lie from record `at` on.
struct Stretch {
  const Parameter* parameter = nullptr;
  const ParameterSlice* slice = nullptr;
  int64_t first = 0, count = 0, at = 0;

  // Blocks with elements in the slice's record `first + i`.
  int64_t BlocksIn(int64_t i) const {
    return std::clamp<int64_t>(BlocksOf(*slice) - (first + i) * kRecordBlocks, 0, kRecordBlocks);
  }
};

// One shard on its way to where it is kept.
struct HostRecords {
  HostRecords(const FlatParameter& flat, int shard, const std::vector<Parameter*>& parameters)
      : code(flat.dtypes.code),
        record_bytes(RecordBytes(code)),
        records(static_cast<size_t>(flat.shard_size)),
        sums(static_cast<size_t>(flat.shard_size / record_bytes)) {
    for (const Piece& piece : PiecesOfShard(flat, shard)) {
      const Parameter& parameter = *parameters[piece.parameter - &flat.parameters[0]];
      for (const RecordPiece& p : RecordPieces(parameter, piece.begin, piece.count)) {
        stretches.push_back(
            {&parameter, p.slice, p.record, p.count, (piece.at + p.at) / record_bytes});
      }
    }
    if (code == WeightCode::kNf4Nested) scales.resize(sums.size() * kRecordBlocks);
  }

  std::span<uint8_t> Records(int64_t at, int64_t count) {
    return std::span(records).subspan(static_cast<size_t>(at * record_bytes),
                                      static_cast<size_t>(count * record_bytes));
  }
  std::span<float> Scales(int64_t at, int64_t count) {
    if (scales.empty()) return {};
    return std::span(scales).subspan(static_cast<size_t>(at * kRecordBlocks),
                                     static_cast<size_t>(count * kRecordBlocks));
  }

  const WeightCode code;
  const int64_t record_bytes;
  std::vector<Stretch> stretches;
  std::vector<uint8_t> records;
  std::vector<float> scales;  // kNf4Nested: as EncodeRecords() gives them.
  std::vector<double> sums;   // The sum of each record's scales.
};

// Runs `body(stretch, begin, end)` on the threads of the stream, records [begin, end) of a stretch.
void ForRecords(ThreadPool& pool, const HostRecords& host,
                const std::function<void(const Stretch&, int64_t begin, int64_t end)>& body) {
  for (const Stretch& stretch : host.stretches) {
    pool.ParallelFor(stretch.count, 1,
                     [&](int64_t begin, int64_t end) { body(stretch, begin, end); });
  }
}

void Encode(ThreadPool& pool, const RecordSource& source, HostRecords& host) {
  ForRecords(pool, host, [&](const Stretch& s, int64_t begin, int64_t end) {
    source.fill(*s.parameter, *s.slice, s.first + begin, host.Records(s.at + begin, end - begin),
                host.Scales(s.at + begin, end - begin));
    if (host.scales.empty() || source.is_whole(*s.slice)) return;
    for (int64_t i = begin; i < end; ++i) {
      const auto blocks = static_cast<size_t>(s.BlocksIn(i));
      host.sums[s.at + i] = SumScales(host.Scales(s.at + i, 1).first(blocks));
    }
  });
}

// `sums`: of all records of the flat parameter, those of this shard's from `own` on.
void FinishScales(ThreadPool& pool, const RecordSource& source, const std::vector<double>& sums,
                  int64_t own, HostRecords& host) {
  ForRecords(pool, host, [&](const Stretch& s, int64_t begin, int64_t end) {
    if (source.is_whole(*s.slice)) return;
    const int64_t blocks = BlocksOf(*s.slice);
    const auto first = sums.begin() + own + s.at - s.first;  // The slice's first record.
    const double sum =
        std::accumulate(first, first + (blocks + kRecordBlocks - 1) / kRecordBlocks, 0.0);
    const auto mean = static_cast<float>(sum / static_cast<double>(blocks));
    for (int64_t i = begin; i < end; ++i) {
      const auto used = static_cast<size_t>(s.BlocksIn(i));
      EncodeScales(mean, host.Scales(s.at + i, 1).first(used), host.Records(s.at + i, 1).data());
    }
  });
}

uint64_t HashOf(const RecordSource& source, HostRecords& host) {
  uint64_t hash = 0;
  for (const Stretch& s : host.stretches) {
    const bool nested = !host.scales.empty() && !source.is_whole(*s.slice);
    for (int64_t i = 0; i < s.count; ++i) {
      const auto blocks = static_cast<size_t>(nested ? s.BlocksIn(i) : 0);
      hash += HashOfRecord(*s.slice, s.first + i, host.Records(s.at + i, 1),
                           host.Scales(s.at + i, 1).first(blocks));
    }
  }
  return hash;
}

template <typename T>
std::string BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// `own` of all shards, one behind the other. A rank's message is its shard, then values.
std::vector<double> OfAllShards(const std::string& name, int shard, int shards,
                                const std::vector<double>& own, const ShareBytes& share) {
  if (shards == 1) return own;
  std::vector<double> all(own.size() * static_cast<size_t>(shards));
  for (size_t at = 0; at < own.size(); at += kPieceSums) {
    const size_t count = std::min<size_t>(kPieceSums, own.size() - at);
    const auto values = std::span<const double>(own).subspan(at, count);
    const auto message = [&] { return BytesOf(std::span<const int>(&shard, 1)) + BytesOf(values); };
    for (const std::string& of_rank : share(name + " " + std::to_string(at), message)) {
      int from = 0;
      std::memcpy(&from, of_rank.data(), sizeof(from));
      std::memcpy(&all[static_cast<size_t>(from) * own.size() + at], of_rank.data() + sizeof(from),
                  count * sizeof(double));
    }
  }
  return all;
}

// Blocks until the records are in the shard.
void Upload(Stream& stream, const View& through, const std::vector<uint8_t>& records,
            const View& shard) {
  const View bytes(through.data, DType::kUInt8, Shape{through.bytes()});
  const auto size = static_cast<int64_t>(records.size());
  for (int64_t at = 0; at < size; at += bytes.NumElements()) {
    const View part = bytes.Slice(0, std::min(bytes.NumElements(), size - at));
    Operation operation{"initialize", {}, {part}, {}};
    operation.costs = {Cost{.bytes_written = static_cast<double>(part.bytes())}};
    const auto copy = [from = records.data() + at](ThreadPool&, const View& host) {
      std::memcpy(host.data, from, static_cast<size_t>(host.bytes()));
    };
    operation.kernels.host = OnCpu(copy, part);
    stream.Enqueue(std::move(operation));
    Copy(stream, part, shard.Slice(at, part.NumElements()));
  }
  stream.Synchronize();
}

}  // namespace

void Executor::Initialize(const FillParameter& fill, const FillBuffer& fill_buffer,
                          const FillRows& fill_rows) {
  for (int f = 0; f < static_cast<int>(parameters_.size()); ++f) {
    if (!layout_.flat_parameters[f].of_base) InitializeMaster(f, fill);
  }
  MastersWritten();
  buffers().Initialize(compute(), memory_.upload, fill_buffer);
  if (tables_ && fill_rows) tables_->Initialize(compute(), fill_rows);
}

void Executor::InitializeMaster(int f, const FillParameter& fill) {
  for (const ShardPart& shard_part : spilled().PartsOf(f)) {
    const View master = spilled().In(0, shard_part, this->master(f));
    for (int64_t at = 0; at < shard_part.count; at += memory_.upload.NumElements()) {
      const View part =
          memory_.upload.Slice(0, std::min(memory_.upload.NumElements(), shard_part.count - at));
      Operation operation{"initialize", {}, {part}, {}};
      operation.costs = {Cost{.bytes_written = static_cast<double>(part.bytes())}};
      const auto initialize = [this, f, at = shard_part.begin + at, fill](ThreadPool& pool,
                                                                          const View& host) {
        FillShard(pool, f, at, host, fill);
      };
      operation.kernels.host = OnCpu(initialize, part);
      Stream& stream = StreamFor(f);
      stream.Enqueue(std::move(operation));
      Cast(stream, part, master.Slice(at, part.NumElements()));
    }
    if (spilled().Holds(this->master(f))) {
      spilled().Write(host(), 0, shard_part, this->master(f));
    }
  }
}

void Executor::FillShard(ThreadPool& pool, int flat, int64_t at, const View& host,
                         const FillParameter& fill) const {
  const FlatParameter& layout = layout_.flat_parameters[flat];
  const std::span<float> values(host.As<float>(), host.NumElements());
  std::fill(values.begin(), values.end(), 0.0f);
  for (const Piece& piece : PiecesOfShard(layout, shard_rank_)) {
    const int64_t from = std::max(piece.at, at);
    const int64_t to = std::min(piece.at + piece.count, at + host.NumElements());
    if (from >= to) continue;
    const Parameter& parameter = *parameters_[flat][piece.parameter - &layout.parameters[0]];
    pool.ParallelFor(to - from, kShardAlignment, [&](int64_t begin, int64_t end) {
      fill(parameter, piece.begin + from - piece.at + begin,
           values.subspan(from - at + begin, end - begin));
    });
  }
}

uint64_t Executor::InitializeBase(const FillParameter& fill, const RecordSource& coded,
                                  const ShareBytes& share) {
  const std::vector<FlatParameter>& flats = layout_.flat_parameters;
  if (std::ranges::none_of(flats, &FlatParameter::of_base)) return 0;
  // Operations that a failed stream leaves behind may share it.
  const auto sum = std::make_shared<std::atomic<uint64_t>>(0);
  share("frozen weights", [&] {
    const auto hashed = [fill, sum](const Parameter& p, int64_t begin, std::span<float> values) {
      fill(p, begin, values);
      *sum += HashOfValues(p, begin, values);
    };
    for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
      if (flats[f].of_base && !flats[f].HasRecords()) InitializeMaster(f, hashed);
    }
    Synchronize();
    return "";
  });
  uint64_t hash = *sum;
  for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
    if (flats[f].HasRecords()) hash += InitializeRecords(f, coded, share);
  }
  MastersWritten();
  uint64_t all = 0;
  const auto own = [&] {
    const uint64_t counted = mesh().coordinate().replicate == 0 ? hash : 0;
    return BytesOf(std::span<const uint64_t>(&counted, 1));
  };
  for (const std::string& of_rank : share("hash of the base", own)) {
    uint64_t part = 0;
    std::memcpy(&part, of_rank.data(), sizeof(part));
    all += part;
  }
  return all;
}

uint64_t Executor::InitializeRecords(int f, const RecordSource& source, const ShareBytes& share) {
  const FlatParameter& flat = layout_.flat_parameters[f];
  HostRecords host(flat, shard_rank_, parameters_[f]);
  const auto on_host = [&](const char* name, const std::function<void(ThreadPool&)>& work) {
    Operation operation{name, {}, {}, {}};
    operation.kernels.host = OnCpu(work);
    StreamFor(f).Enqueue(std::move(operation));
    StreamFor(f).Synchronize();
  };
  share("records of " + flat.name, [&] {
    on_host("encode", [&](ThreadPool& pool) { Encode(pool, source, host); });
    return "";
  });
  const uint64_t hash = HashOf(source, host);
  if (!host.scales.empty()) {
    const std::vector<double> sums =
        OfAllShards("scales of " + flat.name, shard_rank_, layout_.shards, host.sums, share);
    const int64_t own = shard_rank_ * std::ssize(host.sums);
    on_host("encode scales",
            [&](ThreadPool& pool) { FinishScales(pool, source, sums, own, host); });
  }
  Upload(StreamFor(f), memory_.upload, host.records, master(f));
  return hash;
}

}  // namespace fsdp
