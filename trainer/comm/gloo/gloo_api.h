/* Functions of libfsdp_gloo.so: point-to-point messages over Gloo's TCP transport. In C, so that it
 * and the binary that loads it need not agree on a C++ library. No exception crosses it.
 *
 * Where a function can fail it takes `error`, a buffer of FSDP_GLOO_ERROR bytes for a message. */
// Tests: tests/trainer/comm/hosts_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_GLOO_GLOO_API_H_
#define FSDP_TRAIN_TRAINER_COMM_GLOO_GLOO_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_GLOO_VERSION 1
#define FSDP_GLOO_ERROR 512
#define FSDP_GLOO_ADDRESS 256

typedef struct FsdpGlooMesh FsdpGlooMesh;
typedef struct FsdpGlooMessage FsdpGlooMessage;

enum { kFsdpGlooDone = 0, kFsdpGlooAborted = 1, kFsdpGlooFailed = 2 };

typedef struct FsdpGlooApi {
  int version; /* FSDP_GLOO_VERSION */
  /* Listens at the numeric `address` once for each of `peers` (ranks in [0, size), not `rank`).
   * Connecting to one takes at most `timeout_s`. Null: failed. */
  FsdpGlooMesh* (*open)(int rank, int size, const int* peers, int peer_count, const char* address,
                        double timeout_s, char* error);
  /* Where `peer` has to connect to: writes at most FSDP_GLOO_ADDRESS bytes, returns how many;
   * negative: failed. */
  int (*address)(FsdpGlooMesh* mesh, int peer, char* bytes, char* error);
  /* Blocks until connected to `peer`, whose address() for this rank is `bytes`. 0: failed. */
  int (*connect)(FsdpGlooMesh* mesh, int peer, const char* bytes, int count, char* error);
  /* Start a message: a send and a receive of the same `tag` and `bytes` meet, in order where there
   * are several. `data` stays the message's until it is freed. Null: failed. */
  FsdpGlooMessage* (*send)(FsdpGlooMesh* mesh, int peer, uint64_t tag, const void* data,
                           size_t bytes, char* error);
  FsdpGlooMessage* (*receive)(FsdpGlooMesh* mesh, int peer, uint64_t tag, void* data, size_t bytes,
                              char* error);
  /* Blocks until the message is through (a sent one: in the kernel's hands), aborted or lost.
   * Once. */
  int (*wait)(FsdpGlooMessage* message, char* error);
  /* After this nobody touches `data` any more. */
  void (*free)(FsdpGlooMessage* message);
  /* Ends all waits, now and later, and connect(). From any thread. */
  void (*abort)(FsdpGlooMesh* mesh);
  /* After all messages are freed. */
  void (*close)(FsdpGlooMesh* mesh);
} FsdpGlooApi;

/* The one symbol of the library. */
const FsdpGlooApi* fsdp_gloo_api(void);

#ifdef __cplusplus
}
#endif

#endif /* FSDP_TRAIN_TRAINER_COMM_GLOO_GLOO_API_H_ */
