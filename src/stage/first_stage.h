#pragma once

#include <memory>
#include <string>

#include "graft/graft.h"
#include "stage/turns.h"

namespace graft::stage {

// What all decoders of a model in stages share in the process that runs its first stage: they take turns, in one arena.
struct FirstStage {
  Turns turns;
  const std::shared_ptr<Arena> arena = std::make_shared<Arena>();
};

// Of the model with this identity (StageInfo::model), however often it was loaded.
std::shared_ptr<FirstStage> first_stage_of(const std::string& model);

}  // namespace graft::stage
