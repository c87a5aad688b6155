// From a recipe to the objects of a run. The only place where the rooms' own options are filled.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_SETUP_H_
#define FSDP_TRAIN_TRAINER_LOOP_SETUP_H_

#include <memory>
#include <string>
#include <vector>

#include "models/family.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/engine/session.h"

namespace fsdp {

class Model;
struct Recipe;
struct ShapeConflict;

// CPU compute threads of a rank: run.threads, or its share of the cores that it may run on, with
// `sharers` ranks that may run on them; at most its share of a quota of the host's ranks, and at
// least 1.
int ThreadsFor(const Recipe& recipe, int local_world, int sharers);

// A line where so many ranks of one host share fewer cores; empty where they do not.
std::string WhyCrowded(const Recipe& recipe, int local_world);

// The model's shape. With model.init_from it is read from the run's checkpoint where the run goes
// on from one, else from init_from's files. Throws ConfigError, CheckpointError.
ModelShape ShapeFor(const Recipe& recipe);

// Throws ConfigError unless the busiest of the model's experts can have `load` times the mean rows:
// from 1 to N / k, because a token chooses an expert once.
void CheckExpertLoad(const ModelShape& shape, double load);

// The model, with what optimizer.groups says frozen. Throws ConfigError.
std::shared_ptr<Model> BuildModel(const Recipe& recipe, const ModelShape& shape);

// Where a batch norm of a training step would see one value.
std::vector<ShapeConflict> BatchNormConflicts(const Recipe& recipe, const Model& model, int world);

// Mistakes of a recipe that show only beside its model: in model.init_from's shape,
// model.lora.targets, optimizer.groups. The recipe may have other mistakes. Reads init_from;
// ShapeFor() throws where that cannot be read.
std::vector<ShapeConflict> ModelMistakes(const Recipe& recipe);

// `hosts`: where the ranks of the job are. Hybrid strategies shard by them unless the recipe says
// otherwise. Attention is by kernels of our own until AttentionChoice() is made. Throws ConfigError
// where hosts have unequally many ranks.
SessionOptions SessionOptionsFor(const Recipe& recipe, const HostPlacement& hosts, int threads);

// Lines for people on fsdp.quantize: the hops in which gradients are summed, and what the key asks
// for in vain because no matrix has min_size elements. recipe/load.h advises a rank alone. `model`
// is the recipe's.
std::vector<std::string> WhatIsQuantized(const Recipe& recipe, const Model& model,
                                         const SessionOptions& options, const HostPlacement& hosts);

// The schedule of the recipe's optimizer, for the recipe's number of steps.
LrSchedule LrScheduleFor(const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_SETUP_H_
