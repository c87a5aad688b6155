// Times the collectives of an MPI library, as `fsdp-train bench comm --ask` times ours: comm.py
// compiles it with mpicxx and runs it under mpirun.
//   mpi_collectives BATCHES SIZE ...
// Rank 0 reads a number of rounds a line and answers each round with a line of JSON.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

double Time(int batches, long bytes, const std::function<void()>& call) {
  const int calls = static_cast<int>(std::clamp((16L << 20) / bytes, 1L, 1000L));
  std::vector<double> seconds;
  for (int batch = -1; batch < batches; ++batch) {  // The first warms up.
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i) call();
    if (batch >= 0) seconds.push_back((MPI_Wtime() - begin) / calls);
  }
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int batches = std::atoi(argv[1]);
  std::vector<long> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::atol(argv[i]));
  const long largest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<float> a(largest / 4), b(largest / 4);
  while (true) {
    int rounds = 0;
    if (rank == 0 && std::scanf("%d", &rounds) != 1) rounds = 0;
    MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rounds == 0) break;
    for (int round = 0; round < rounds; ++round) {
      if (rank == 0) std::printf("{\"collectives\": [");
      for (const long asked : sizes) {
        const int n = static_cast<int>(asked / 4 / size), all = n * size;
        const long bytes = 4L * all;
        const struct {
          const char* name;
          std::function<void()> call;
        } kinds[] = {
            {"all_gather",
             [&] {
               MPI_Allgather(b.data(), n, MPI_FLOAT, a.data(), n, MPI_FLOAT, MPI_COMM_WORLD);
             }},
            {"reduce_scatter",
             [&] {
               MPI_Reduce_scatter_block(a.data(), b.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
             }},
            {"all_reduce",
             [&] {
               MPI_Allreduce(MPI_IN_PLACE, a.data(), all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
             }},
            {"all_to_all",
             [&] { MPI_Alltoall(a.data(), n, MPI_FLOAT, b.data(), n, MPI_FLOAT, MPI_COMM_WORLD); }},
            {"broadcast", [&] { MPI_Bcast(a.data(), all, MPI_FLOAT, 0, MPI_COMM_WORLD); }},
        };
        for (const auto& kind : kinds) {
          const double seconds = Time(batches, bytes, kind.call);
          if (rank != 0) continue;
          const bool first = asked == sizes.front() && &kind == &kinds[0];
          std::printf("%s{\"collective\": \"%s\", \"bytes\": %ld, \"seconds\": %.9g}",
                      first ? "" : ", ", kind.name, bytes, seconds);
        }
      }
      if (rank == 0) {
        std::printf("]}\n");
        std::fflush(stdout);
      }
    }
  }
  MPI_Finalize();
}
