#pragma once

#include "plan/plan.h"

namespace graft {

// Makes graphs of the launches of the device stages, and the queue of each stage (Stage::graphs, queue, events,
// streams) and Launch::leaves_graph. Needs the stages. Outside of the plan's sections one graph on stream 0 has all
// launches that follow each other; in a section a graph ends where a stream waits for another one, or another one waits
// for it. All streams wait for stream 0 when a section begins, and stream 0 for them where it or the stage ends.
void queue_graphs(Plan& plan);

}  // namespace graft
