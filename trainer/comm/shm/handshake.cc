#include "trainer/comm/shm/handshake.h"

#include <unistd.h>

#include <sstream>

#include "trainer/core/errors.h"

namespace fsdp {

std::string Card::ToString() const {
  return std::to_string(pid) + " " + std::to_string(fd) + " " + words + "\n" + error;
}

Card Card::Parse(const std::string& text) {
  Card card;
  std::istringstream in(text);
  in >> card.pid >> card.fd;
  in.get();
  std::getline(in, card.words);
  std::getline(in, card.error, '\0');
  return card;
}

Card MyCard() {
  Card card;
  card.pid = static_cast<int>(getpid());
  return card;
}

std::string ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return std::string("U") + error.what();
  } catch (const CommError& error) {
    return std::string("C") + error.what();
  } catch (const DeviceError& error) {
    return std::string("D") + error.what();
  }
  return "";
}

std::vector<Card> ExchangeCards(Store& store, const std::string& key, const std::string& what,
                                const RankGroup& group, const Card& mine) {
  std::vector<Card> cards;
  for (const std::string& text : Exchange(store, key, group, mine.ToString())) {
    cards.push_back(Card::Parse(text));
  }
  for (int r = 0; r < group.size(); ++r) {
    const std::string& error = cards[r].error;
    if (error.empty()) continue;
    const std::string text =
        what + ", rank " + std::to_string(group.NameOf(r)) + ": " + error.substr(1);
    if (error[0] == 'D') throw DeviceError(text);
    if (error[0] == 'U') throw ConfigError(text);
    throw CommError(text);
  }
  return cards;
}

LocalMemory ReachMemory(const RankGroup& group, const std::vector<int>& locals,
                        const std::vector<Card>& cards, const UniqueFd& made, int64_t bytes) {
  LocalMemory memory;
  const int first = locals[0];
  if (group.rank() == first) {
    memory.mapping = std::make_unique<SharedMapping>(made.get(), bytes);
  } else {
    const UniqueFd opened = OpenSharedMemory(cards[first].pid, cards[first].fd, bytes,
                                             "rank " + std::to_string(group.NameOf(first)));
    memory.mapping = std::make_unique<SharedMapping>(opened.get(), bytes);
  }
  for (const int local : locals) {
    memory.peers.push_back(local == group.rank() ? PeerProcess() : PeerProcess(cards[local].pid));
  }
  return memory;
}

}  // namespace fsdp
