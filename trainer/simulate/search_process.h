// The output of `fsdp-train plan --search`.
// Tests: tests/e2e/search_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_PROCESS_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_PROCESS_H_

#include <string>

#include "trainer/core/errors.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/search.h"

namespace fsdp {

class ProgressLine;

// Searches, with its progress in `line`, and prints what Search() found: for people, or as one JSON
// object. Throws as Search() does.
ExitCode SearchProcess(const LoadWith& load, int world, int local_world, const Hardware& hardware,
                       double budget_s, double expert_load, bool json, ProgressLine& line);

// Lines, ended. `world`: ranks of the job.
std::string SearchToText(const SearchResult& result, int world, const Hardware& hardware);
// It says nothing of how long the search took: equal searches give equal texts.
std::string SearchToJson(const SearchResult& result, int world, int local_world);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_PROCESS_H_
