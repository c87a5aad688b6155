// The address under which other hosts reach this one.
// Tests: tests/trainer/comm/host_placement_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_HOSTS_LOCAL_ADDRESS_H_
#define FSDP_TRAIN_TRAINER_COMM_HOSTS_LOCAL_ADDRESS_H_

#include <string>

#include "trainer/comm/store/store.h"

namespace fsdp {

// The address, numeric, from which this host sends to `host`. Nothing is sent. Throws CommError.
std::string AddressTowards(const std::string& host);

// The address of a network interface, IPv4 before IPv6. Throws ConfigError naming the interfaces
// there are.
std::string AddressOfInterface(const std::string& interface);

// Each rank's AddressTowards(`master`), the host of the store. On the master's own host that may be
// the loopback device (a name in /etc/hosts); there it is the address by which other hosts know it.
// $FSDP_TRAIN_IFACE, the name of an interface, overrides it, for one rank or all. All ranks call
// this, with a `name` used once. Blocks.
std::string AgreeOnAddress(Store& store, const std::string& name, int rank, int size,
                           const std::string& master);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_HOSTS_LOCAL_ADDRESS_H_
