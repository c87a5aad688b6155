// All of NCCL that a look at its version needs.
extern "C" int ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
