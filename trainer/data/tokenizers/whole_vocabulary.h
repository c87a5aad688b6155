// A tokenizer for all ids of a model, which may know more of them than its tokenizer does (a
// vocabulary padded to a round number), or have no tokenizer at all.
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_WHOLE_VOCABULARY_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_WHOLE_VOCABULARY_H_

#include <cstdint>
#include <memory>

#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

// `tokenizer` for its own ids; each further one, below `size`, reads `<id>`, such as `<50300>`.
// Null: every id reads so, and EncodePart() throws DataError.
std::shared_ptr<const Tokenizer> WholeVocabulary(std::shared_ptr<const Tokenizer> tokenizer,
                                                 int32_t size);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_WHOLE_VOCABULARY_H_
