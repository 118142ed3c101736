#include "serve/grammars.h"

#include <algorithm>

namespace graft::serve {

std::shared_ptr<const Grammar> Grammars::get(const std::string& key, const Make& make) {
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = kept_.begin(); entry != kept_.end(); ++entry)
      if (entry->first == key) {
        kept_.splice(kept_.begin(), kept_, entry);
        return entry->second;
      }
    if (!vocabulary_) vocabulary_ = GrammarVocabulary::of(*model_->tokenizer(), model_->info().eos_token_ids);
  }
  const std::shared_ptr<const Grammar> made = make(vocabulary_);
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(key, made);
  if (kept_.size() > kMost) kept_.pop_back();
  return made;
}

}  // namespace graft::serve
