// Which source sample i of a weighted mixture comes from, and which of that source's samples it is:
// a pure function of (weights, seed, i). No state: a resumed run needs its step and nothing else,
// and ranks do not enter.
//
// The sources are the leaves of a balanced binary tree. A node shares the samples that reach it:
//   left(n) = floor(n p + phi)  of the first n go left,  p = weight on the left / weight of both,
// phi in [0, 1) drawn from the seed, so that seeds differ in where a source's turn falls. The
// sample with number n at a node goes left if left(n + 1) > left(n) and is number left(n) there,
// else number n - left(n) on the right. So each source's samples are used in order, none twice and
// none left out, and the turns are as even as whole numbers let them be: of the first n samples of
// the run, a source of share w has n w, give or take less than its depth in the tree, at most
// ceil(log2 K) for K sources. (A Sturmian word at each node; a Bresenham line, if you like.)
#ifndef FSDP_TRAIN_TRAINER_DATA_MIXTURE_H_
#define FSDP_TRAIN_TRAINER_DATA_MIXTURE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

class Mixture {
 public:
  // One weight a source, finite and > 0, in any unit; at least one. Otherwise
  // std::invalid_argument, also where one source's share is below 2^-60 of a node's.
  Mixture(std::span<const double> weights, uint64_t seed);
  // False: the constructor would throw.
  static bool CanShare(std::span<const double> weights);

  struct Place {
    int64_t source;
    int64_t sample;  // The source's sample, from 0.
    bool operator==(const Place&) const = default;
  };
  Place operator()(int64_t sample) const;  // 0 <= sample < 2^62. O(log K).

  // How many of the first n samples come from each source.
  std::vector<int64_t> Counts(int64_t n) const;
  // The largest n up to `most` for which no source gives more than `available` samples.
  int64_t Longest(std::span<const int64_t> available, int64_t most) const;

 private:
  // A node over the sources [begin, end); its left child is the next in nodes_.
  struct Node {
    int64_t begin, end;
    uint64_t share, phase;  // p and phi, times 2^62.
    size_t right;           // Index of the right child.
  };
  size_t Build(std::span<const double> weights, int64_t begin, int64_t end, uint64_t seed);
  static int64_t Left(const Node& node, int64_t n);

  std::vector<Node> nodes_;  // Leaves too.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_MIXTURE_H_
