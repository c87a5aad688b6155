#include "trainer/loop/data_watch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "trainer/comm/store/store.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/errors.h"

namespace fsdp {

void DataWatch::Load(const Batch& batch, const std::function<void()>& load) {
  if (!failed_) {
    try {
      return load();
    } catch (const DataError& error) {
      const std::lock_guard lock(mutex_);
      if (error_.empty()) error_ = error.what();
      failed_ = true;
    }
  }
  Batch all = batch;
  ForEachAddress(all,
                 [](View& view) { std::memset(view.data, 0, static_cast<size_t>(view.bytes())); });
  for (size_t i = 0; i < inputs_.inputs.size(); ++i) {
    if (inputs_.inputs[i].role != BatchInput::Role::kWeight) continue;
    const View& weights = batch.inputs[i];
    std::fill_n(weights.As<float>(), weights.NumElements(),
                std::numeric_limits<float>::quiet_NaN());
  }
}

bool DataWatch::HasFailed(const std::string& at) {
  if (known()) return true;
  const auto mine = [this] {
    const std::lock_guard lock(mutex_);
    return error_;
  };
  const std::vector<std::string> errors =
      Together(*job_.store, "train/data/" + at, job_.rank, job_.world, mine);
  const auto first = std::find_if(errors.begin(), errors.end(),
                                  [](const std::string& error) { return !error.empty(); });
  if (first == errors.end()) return false;
  who_ = static_cast<int>(first - errors.begin());
  what_ = *first;
  return true;
}

void DataWatch::End(const std::function<std::string()>& save) const {
  std::string words;
  try {
    if (const std::string saved = save(); !saved.empty()) {
      words = "; the run can go on from " + saved +
              ", with data.allow_changed: true unless all files are as they were when it started";
    }
  } catch (const CommError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const Error& error) {
    words = std::string("; no checkpoint is saved: ") + error.what();
  }
  const DataError error(what_ + words);
  BeforeAllThrow(*job_.store, "train/data failed", job_.rank, job_.world);
  if (who_ != job_.rank) throw ReportedElsewhere(error);
  throw DataError(error);
}

}  // namespace fsdp
