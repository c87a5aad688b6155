#include "trainer/loop/place.h"

#include <utility>

#include "trainer/loop/gpu_room.h"
#include "trainer/loop/run_data.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

DeviceType TypeOf(const Hardware& hardware) {
  return hardware.device == Hardware::Device::kCuda ? DeviceType::kCuda : DeviceType::kCpu;
}

PlanTarget WholeDevice(const ChosenDevice& device, const Recipe& recipe, int blocks) {
  PlanTarget target{.device = device.type};
  if (device.type == DeviceType::kCuda) {
    target.room = {device.memory / device.sharers, "all memory of " + device.name};
    target = LessCode(std::move(target), device.sharers);
    if (device.sharers == 1) target = RoomUnseen(target, recipe, blocks);
  }
  return target;
}

// Each rank has a described GPU to itself.
PlanTarget RoomOf(const Hardware& hardware, int local_world, const Recipe& recipe, int blocks) {
  PlanTarget target{.device = TypeOf(hardware)};
  const bool cuda = target.device == DeviceType::kCuda;
  if (cuda) target = RoomUnseen(target, recipe, blocks);
  target.outside = hardware.outside;
  if (hardware.memory) {
    target.room = {*hardware.memory - hardware.outside.value_or(0), "memory of " + hardware.name};
    if (cuda) target = LessCode(std::move(target), /*sharers=*/1);
  }
  target.other_host = true;
  if (hardware.host_memory) {
    target.host = {*hardware.host_memory / local_world, "host_memory of " + hardware.name};
  }
  return target;
}

}  // namespace

Place PlaceToTrain(const Job& job) {
  Place place{.rank = job.rank, .world = job.world, .local_world = job.local_world, .job = &job};
  place.device = job.device;
  place.data = ProgressFor(job);
  return place;
}

Place PlaceToEvaluate(const Job& job, bool silent) {
  Place place = PlaceToTrain(job);
  place.trains = place.data->trains = false;
  if (silent) place.data->say = place.data->remark = nullptr;
  return place;
}

Place PlaceOfDryRun(const Recipe& recipe, int rank, int world, int local_world,
                    const ChosenDevice& device) {
  Place place{.rank = rank, .world = world, .local_world = local_world, .device = device};
  if (world > 1 && device.type == DeviceType::kCuda && device.sharers == 1) {
    place.multiprocessors =
        ShareOut(recipe, {device.major, /*in_reach=*/local_world, device.multiprocessors});
  }
  place.target = WholeDevice(device, recipe, place.multiprocessors.collectives);
  place.data.emplace();
  return place;
}

Place PlaceToPlan(const Recipe& recipe, int world, int local_world,
                  const std::optional<Hardware>& hardware, double expert_load) {
  Place place{.world = world, .local_world = local_world, .expert_load = expert_load};
  if (hardware) {
    place.described = hardware->name;
    if (world > 1 && TypeOf(*hardware) == DeviceType::kCuda) {
      place.multiprocessors =
          ShareOut(recipe, {static_cast<int>(hardware->capability.value_or(0)),
                            /*in_reach=*/local_world,
                            static_cast<int>(hardware->multiprocessors.value_or(0))});
    }
    place.target = RoomOf(*hardware, local_world, recipe, place.multiprocessors.collectives);
  } else if (recipe.run.device == RunRecipe::Device::kCuda) {
    if (world > 1) place.multiprocessors = ShareOut(recipe, {});
    place.target =
        RoomUnseen({.device = DeviceType::kCuda}, recipe, place.multiprocessors.collectives);
  }
  return place;
}

Place PlaceToBench(int world, DeviceType kernels) {
  return {.world = world, .local_world = world, .target = {.device = kernels}, .threads = 1};
}

Place PlaceToBench(int world, const Hardware& hardware) {
  Place place = PlaceToBench(world, TypeOf(hardware));
  place.described = hardware.name;
  return place;
}

}  // namespace fsdp
