// libfsdp_gloo.so: the only code that sees Gloo's headers.
// Tests: tests/trainer/comm/hosts_communicator_test.cc
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/comm/gloo/gloo_api.h"

struct FsdpGlooMesh {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
  std::vector<int> peers;

  std::mutex mutex;  // Guards the three below.
  bool aborted = false;
  int connecting = -1;  // The peer that connect() waits for.
  std::set<FsdpGlooMessage*> messages;
};

struct FsdpGlooMessage {
  FsdpGlooMesh* mesh;
  bool sends;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

namespace {

void Report(const char* what, char* error) {
  std::strncpy(error, what, FSDP_GLOO_ERROR - 1);
  error[FSDP_GLOO_ERROR - 1] = 0;
}

template <typename Result, typename Function>
Result Guard(Result failed, char* error, Function function) {
  try {
    return function();
  } catch (const std::exception& e) {
    Report(e.what(), error);
  } catch (...) {
    Report("an exception of an unknown type", error);
  }
  return failed;
}

// No operation has a time limit of Gloo's own: one that passes closes every connection.
constexpr std::chrono::hours kForever{10000};

void AbortWait(FsdpGlooMessage& message) {
  if (message.sends) {
    message.buffer->abortWaitSend();
  } else {
    message.buffer->abortWaitRecv();
  }
}

FsdpGlooMesh* Open(int rank, int size, const int* peers, int peer_count, const char* address,
                   double timeout_s, char* error) {
  return Guard<FsdpGlooMesh*>(nullptr, error, [&] {
    auto mesh = std::make_unique<FsdpGlooMesh>();
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    mesh->device = gloo::transport::tcp::CreateDevice(attributes);
    mesh->context = mesh->device->createContext(rank, size);
    // A pair waits five times its timeout for its connection.
    mesh->context->setTimeout(
        std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(timeout_s * 200))));
    mesh->peers.assign(peers, peers + peer_count);
    for (const int peer : mesh->peers) mesh->context->createPair(peer);
    return mesh.release();
  });
}

int Address(FsdpGlooMesh* mesh, int peer, char* bytes, char* error) {
  return Guard(-1, error, [&] {
    const std::vector<char> address = mesh->context->getPair(peer)->address().bytes();
    if (address.size() > FSDP_GLOO_ADDRESS) throw std::length_error("address too long");
    std::copy(address.begin(), address.end(), bytes);
    return static_cast<int>(address.size());
  });
}

int Connect(FsdpGlooMesh* mesh, int peer, const char* bytes, int count, char* error) {
  return Guard(0, error, [&] {
    {
      const std::lock_guard lock(mesh->mutex);
      if (mesh->aborted) throw std::runtime_error("aborted");
      mesh->connecting = peer;
    }
    mesh->context->getPair(peer)->connect(std::vector<char>(bytes, bytes + count));
    const std::lock_guard lock(mesh->mutex);
    mesh->connecting = -1;
    if (mesh->aborted) throw std::runtime_error("aborted");
    return 1;
  });
}

FsdpGlooMessage* Start(FsdpGlooMesh* mesh, bool sends, int peer, uint64_t tag, void* data,
                       size_t bytes, char* error) {
  return Guard<FsdpGlooMessage*>(nullptr, error, [&] {
    std::unique_ptr<FsdpGlooMessage> message(
        new FsdpGlooMessage{mesh, sends, mesh->context->createUnboundBuffer(data, bytes)});
    if (sends) {
      message->buffer->send(peer, tag, 0, bytes);
    } else {
      message->buffer->recv(peer, tag, 0, bytes);
    }
    const std::lock_guard lock(mesh->mutex);
    mesh->messages.insert(message.get());
    if (mesh->aborted) AbortWait(*message);
    return message.release();
  });
}

FsdpGlooMessage* Send(FsdpGlooMesh* mesh, int peer, uint64_t tag, const void* data, size_t bytes,
                      char* error) {
  return Start(mesh, true, peer, tag, const_cast<void*>(data), bytes, error);
}

FsdpGlooMessage* Receive(FsdpGlooMesh* mesh, int peer, uint64_t tag, void* data, size_t bytes,
                         char* error) {
  return Start(mesh, false, peer, tag, data, bytes, error);
}

int Wait(FsdpGlooMessage* message, char* error) {
  return Guard<int>(kFsdpGlooFailed, error, [&] {
    const auto forever = std::chrono::duration_cast<std::chrono::milliseconds>(kForever);
    const bool done = message->sends ? message->buffer->waitSend(nullptr, forever)
                                     : message->buffer->waitRecv(nullptr, forever);
    return done ? kFsdpGlooDone : kFsdpGlooAborted;
  });
}

void Free(FsdpGlooMessage* message) {
  {
    const std::lock_guard lock(message->mesh->mutex);
    message->mesh->messages.erase(message);
  }
  delete message;  // Waits for a read or write of it that is under way.
}

void Abort(FsdpGlooMesh* mesh) {
  const std::lock_guard lock(mesh->mutex);
  mesh->aborted = true;
  if (mesh->connecting >= 0) mesh->context->getPair(mesh->connecting)->close();
  for (FsdpGlooMessage* message : mesh->messages) AbortWait(*message);
}

void Close(FsdpGlooMesh* mesh) { delete mesh; }

constexpr FsdpGlooApi kApi = {FSDP_GLOO_VERSION, Open, Address, Connect, Send,
                              Receive,           Wait, Free,    Abort,   Close};

}  // namespace

extern "C" __attribute__((visibility("default"))) const FsdpGlooApi* fsdp_gloo_api(void) {
  return &kApi;
}
