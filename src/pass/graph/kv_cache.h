#pragma once

#include <cstddef>

#include "ir/program.h"

namespace graft {

// A graph of graft.attention nodes has no memory: the exported program is a function of its inputs. This pass adds the
// states that each layer reads and writes: `kv.<layer>.key` and `kv.<layer>.value` [rows, Hkv, slots, D], whose rows
// and slots each session chooses (SessionOptions::kv), and one `kv.length` [rows], against which graft.cache_positions
// checks the tokens' positions. Methods that name the same layer share its states. Throws InvalidProgram if the nodes
// of a method do not share one `cache_position`, or two have the same layer.
// Recurrent nodes (graft.causal_conv1d; graft.gated_delta_rule, selective_scan, diagonal_scan and wkv, each .cached)
// likewise get `recurrent.<layer>.<conv, delta, scan, diagonal or wkv>.<index>` [rows, 2, ...], and all of them
// `kv.recurrent_half` [rows], which says which of the two is a row's: a run reads it and writes the other, so that one
// that fails leaves all as it was.
// Layers with a window keep no more than it in a ring buffer.
std::size_t add_kv_cache(ir::Program& program);

// The same for encoder outputs (cross-attention): graft.store_source and graft.source_attention nodes get the states
// `kv.source.<layer>.key` and `kv.source.<layer>.value` [rows, Hkv, slots, D] and `kv.source.length` [rows].
std::size_t add_encoder_cache(ir::Program& program);

}  // namespace graft
