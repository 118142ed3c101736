#include "mutate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "graft_generated.h"
#include "program_generated.h"
#include "random.h"

namespace graft::fuzz {
namespace {

namespace et = executorch_flatbuffer;

constexpr std::size_t kHeaderAt = 8;  // of a .pte: magic, length, size of the program, base and size of the segments
constexpr std::size_t kHeaderBytes = 32;
constexpr std::uint64_t kSegmentAlignment = 128;

// Copies a table: the object API of this FlatBuffers version has no copies.
template <typename Table, typename T>
std::unique_ptr<T> copy_of(const std::unique_ptr<T>& from) {
  flatbuffers::FlatBufferBuilder b;
  b.Finish(Table::Pack(b, from.get()));
  return std::unique_ptr<T>(flatbuffers::GetRoot<Table>(b.GetBufferPointer())->UnPack());
}

Blob to_blob(const flatbuffers::FlatBufferBuilder& b) {
  const auto* first = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
  return Blob(first, first + b.GetSize());
}

// Aligned to 8 bytes, so that FlatBuffers may read numbers in place.
std::vector<std::uint64_t> aligned(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> out(bytes.size() / 8 + 1);
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// UnPack() reads elements of eight bytes in place, and the verifier checks the alignment of a vector's length alone.
template <typename T>
bool can_read(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr || reinterpret_cast<std::uintptr_t>(vector->Data()) % sizeof(T) == 0;
}
bool can_unpack(const fb::Program& program) {
  const auto can_read_sizes = [](const auto* items) {
    return items == nullptr || std::ranges::all_of(*items, [](const auto* item) { return can_read(item->sizes()); });
  };
  return can_read_sizes(program.weights()) && can_read_sizes(program.states());
}
bool can_unpack(const et::Program& program) {
  if (const auto* segment = program.constant_segment(); segment != nullptr && !can_read(segment->offsets()))
    return false;
  if (const auto* segments = program.mutable_data_segments())
    for (const auto* segment : *segments)
      if (!can_read(segment->offsets())) return false;
  if (program.execution_plan() == nullptr) return true;
  for (const auto* plan : *program.execution_plan()) {
    if (plan->non_const_buffer_sizes() != nullptr && !can_read(plan->non_const_buffer_sizes())) return false;
    if (plan->values() == nullptr) continue;
    for (const auto* value : *plan->values()) {
      const auto* ints = value->val_as_IntList();
      const auto* reals = value->val_as_DoubleList();
      if ((ints != nullptr && !can_read(ints->items())) || (reals != nullptr && !can_read(reals->items())))
        return false;
    }
  }
  return true;
}

class IrMutator {
 public:
  IrMutator(fb::ProgramT& program, Random& random) : program_(program), random_(random) {}

  void run() {
    for (std::size_t n = 1 + random_.below(random_.one_in(3) ? 4 : 1); n > 0; --n)
      for (int tries = 0; tries < 8 && !step(); ++tries) {
      }
  }

 private:
  bool step() {
    if (random_.one_in(40)) return header();
    if (random_.one_in(12)) return rename_size();
    if (random_.one_in(12)) return storage();
    if (program_.methods.empty()) return false;
    fb::MethodT& m = *random_.of(program_.methods);
    switch (random_.below(14)) {
      case 0:
        return signature(m);
      case 1:
      case 2:
      case 3:
        return value(m);
      case 4:
        return nodes(m);
      case 5:
        return op();
      default:
        return node_argument(m);
    }
  }

  bool header() {
    switch (random_.below(5)) {
      case 0:
        random_.change(program_.major);
        return true;
      case 1:
        program_.required_features.push_back("x");
        return true;
      case 2:
        return random_.rearrange(program_.ops, copy_of<fb::Op, fb::OpT>);
      case 3:
        return random_.rearrange(program_.methods, copy_of<fb::Method, fb::MethodT>);
      default:
        random_.change(program_.minor);
        return true;
    }
  }

  // Replaces one size wherever it appears: mostly a valid program of another shape.
  bool rename_size() {
    std::vector<std::int64_t> sizes;
    for (const auto& m : program_.methods)
      for (const auto& v : m->values)
        for (const auto& d : v->dims) sizes.push_back(d->max);
    if (sizes.empty()) return false;
    const std::int64_t from = random_.of(sizes), to = random_.integer(from);
    const auto replace = [&](auto& n) {
      if (static_cast<std::int64_t>(n) == from) n = static_cast<std::remove_reference_t<decltype(n)>>(to);
    };
    for (auto& m : program_.methods)
      for (auto& v : m->values)
        for (auto& d : v->dims) {
          replace(d->min);
          replace(d->max);
        }
    for (auto& w : program_.weights) {
      const bool touched = std::find(w->sizes.begin(), w->sizes.end(), from) != w->sizes.end();
      for (auto& size : w->sizes) replace(size);
      if (touched && from != 0)
        w->byte_size = w->byte_size / static_cast<std::uint64_t>(from) * static_cast<std::uint64_t>(to);
    }
    for (auto& s : program_.states)
      for (auto& size : s->sizes) replace(size);
    return true;
  }

  bool storage() {
    if (!program_.states.empty() && random_.one_in(4)) {
      fb::StateT& s = *random_.of(program_.states);
      switch (random_.below(4)) {
        case 0:
          random_.change(s.initial);
          return true;
        case 1:
          random_.change_enum(s.dtype, static_cast<int>(fb::DType::MAX));
          return true;
        case 2:
          random_.text(s.fqn);
          return true;
        default:
          return numbers(s.sizes);
      }
    }
    if (program_.weights.empty()) return false;
    if (random_.one_in(8)) return random_.rearrange(program_.weights, copy_of<fb::Weight, fb::WeightT>);
    fb::WeightT& w = *random_.of(program_.weights);
    switch (random_.below(9)) {
      case 0:
        random_.text(w.key);
        return true;
      case 1:
        random_.change_enum(w.dtype, static_cast<int>(fb::DType::MAX));
        return true;
      case 2:
        random_.change_enum(w.storage, static_cast<int>(fb::Storage::MAX));
        w.block_type = random_.one_in(2) ? "q8_0" : "int8";
        return true;
      case 3:
        w.storage = static_cast<fb::Storage>(2);  // of no storage
        return true;
      case 4:
        random_.change(w.byte_size);
        return true;
      case 5:
        w.block_type = random_.one_in(2) ? "q4_k" : "";
        return true;
      case 6:
        w.sha256.resize(random_.one_in(2) ? 32 : random_.below(64));
        return true;
      case 7:
        w.key = random_.of(program_.weights)->key;
        return true;
      default:
        return numbers(w.sizes);
    }
  }

  template <typename T>
  bool numbers(std::vector<T>& items) {
    if (!items.empty() && !random_.one_in(3)) {
      random_.change(random_.of(items));
      return true;
    }
    if (random_.one_in(2)) items.push_back(static_cast<T>(1 + random_.below(4)));
    return random_.rearrange(items);
  }

  bool signature(fb::MethodT& m) {
    switch (random_.below(7)) {
      case 0:
        random_.text(m.name);
        return true;
      case 1:
        return random_.rearrange(m.inputs, copy_of<fb::Input, fb::InputT>);
      case 2:
        return random_.rearrange(m.outputs, copy_of<fb::Output, fb::OutputT>);
      case 3:
        return random_.rearrange(m.user_input_names);
      case 4: {
        if (m.inputs.empty()) return false;
        fb::InputT& in = *random_.of(m.inputs);
        if (random_.one_in(3)) random_.change_enum(in.kind, static_cast<int>(fb::InputKind::MAX));
        random_.change(random_.one_in(2) ? in.index : in.value);
        return true;
      }
      case 5: {
        if (m.outputs.empty()) return false;
        fb::OutputT& out = *random_.of(m.outputs);
        if (random_.one_in(3)) random_.change_enum(out.kind, static_cast<int>(fb::OutputKind::MAX));
        random_.change(out.index);
        return true;
      }
      default:
        if (m.outputs.empty()) return false;
        return argument(m, *random_.of(m.outputs)->arg);
    }
  }

  bool value(fb::MethodT& m) {
    if (m.values.empty()) return false;
    fb::ValueT& v = *random_.of(m.values);
    switch (random_.below(8)) {
      case 0:
        random_.change_enum(v.dtype, static_cast<int>(fb::DType::MAX));
        return true;
      case 1:
        random_.change_enum(v.kind, static_cast<int>(fb::ValueKind::MAX));
        return true;
      case 2:
        return random_.rearrange(v.dims, copy_of<fb::Dim, fb::DimT>);
      default: {
        if (v.dims.empty()) return false;
        fb::DimT& d = *random_.of(v.dims);
        const bool fixed = d.min == d.max;
        if (random_.one_in(2)) {
          d.min = 0;  // any size: the shape rules decide
          d.max = std::numeric_limits<std::int64_t>::max();
          return true;
        }
        random_.change(d.max);
        if (fixed || random_.one_in(2)) d.min = d.max;
        return true;
      }
    }
  }

  bool nodes(fb::MethodT& m) {
    if (m.nodes.empty()) return false;
    if (random_.one_in(3)) return random_.rearrange(m.nodes, copy_of<fb::Node, fb::NodeT>);
    fb::NodeT& n = *random_.of(m.nodes);
    switch (random_.below(4)) {
      case 0:
        random_.change(n.op);
        return true;
      case 1:
        return numbers(n.outputs);
      case 2:
        n.op = random_.of(m.nodes)->op;
        return true;
      default:
        return random_.rearrange(n.args, copy_of<fb::Arg, fb::ArgT>);
    }
  }

  bool op() {
    if (program_.ops.empty()) return false;
    fb::OpT& o = *random_.of(program_.ops);
    switch (random_.below(4)) {
      case 0:
        o.target = random_.of(program_.ops)->target;
        return true;
      case 1:
        random_.text(o.target);
        return true;
      case 2:
        return random_.rearrange(o.arg_names);
      default:
        if (o.arg_names.empty()) return false;
        random_.text(random_.of(o.arg_names));
        return true;
    }
  }

  bool node_argument(fb::MethodT& m) {
    if (m.nodes.empty()) return false;
    fb::NodeT& n = *random_.of(m.nodes);
    return !n.args.empty() && argument(m, *random_.of(n.args));
  }

  bool argument(fb::MethodT& m, fb::ArgT& a) {
    if (random_.one_in(12)) {
      random_.change_enum(a.kind, static_cast<int>(fb::ArgKind::MAX));
      return true;
    }
    switch (a.kind) {
      case fb::ArgKind::int_:
        random_.change(a.i);
        return true;
      case fb::ArgKind::bool_:
        a.i = a.i == 0;
        return true;
      case fb::ArgKind::float_:
        a.f = random_.real(a.f);
        return true;
      case fb::ArgKind::dtype:
        a.i = static_cast<std::int64_t>(random_.below(12));
        return true;
      case fb::ArgKind::value:
        a.i = random_.one_in(8) ? random_.integer(a.i) : static_cast<std::int64_t>(random_.below(m.values.size()));
        return true;
      case fb::ArgKind::list:
        if (!a.items.empty() && !random_.one_in(4)) return argument(m, *random_.of(a.items));
        return random_.rearrange(a.items, copy_of<fb::Arg, fb::ArgT>);
      case fb::ArgKind::string_:
        random_.text(a.s);
        return true;
      case fb::ArgKind::none:
        a.kind = random_.one_in(2) ? fb::ArgKind::int_ : fb::ArgKind::value;
        a.i = static_cast<std::int64_t>(random_.below(m.values.size()));
        return true;
      default:
        random_.text(a.s);
        return true;
    }
  }

  fb::ProgramT& program_;
  Random& random_;
};

Blob mutate_ir(std::span<const std::byte> blob, Random& random) {
  const std::vector<std::uint64_t> copy = aligned(blob);
  const auto* data = reinterpret_cast<const std::uint8_t*>(copy.data());
  flatbuffers::Verifier verifier(data, blob.size(), 32, static_cast<flatbuffers::uoffset_t>(blob.size()));
  if (random.one_in(20) || blob.size() < 8 || !fb::VerifyProgramBuffer(verifier)) return mutate_bytes(blob, random);
  if (!can_unpack(*fb::GetProgram(data))) return mutate_bytes(blob, random);
  const std::unique_ptr<fb::ProgramT> program(fb::GetProgram(data)->UnPack());
  IrMutator(*program, random).run();
  flatbuffers::FlatBufferBuilder b;
  fb::FinishProgramBuffer(b, fb::Program::Pack(b, program.get()));
  return to_blob(b);
}

class PackageMutator {
 public:
  PackageMutator(std::span<const std::byte> file, Random& random) : file_(file), random_(random) {}

  Blob run() {
    if (random_.one_in(20) || !take_apart()) return mutate_bytes(file_, random_);
    const std::size_t what = random_.below(10);
    if (what < 5)
      delegate();
    else if (what < 9)
      for (std::size_t n = 1 + random_.below(2); n > 0; --n) tables();
    Blob out = put_together();
    if (what == 9) header(out);
    return out;
  }

 private:
  bool take_apart() {
    if (file_.size() < kHeaderAt + kHeaderBytes) return false;
    std::array<std::uint64_t, 3> header;  // size of the program, base and size of the segments
    std::memcpy(header.data(), file_.data() + kHeaderAt + 8, sizeof(header));
    if (header[0] > file_.size() || header[1] > file_.size()) return false;
    const std::vector<std::uint64_t> head = aligned(file_.first(header[0]));
    const auto* data = reinterpret_cast<const std::uint8_t*>(head.data());
    flatbuffers::Verifier verifier(data, header[0], 32, static_cast<flatbuffers::uoffset_t>(header[0]));
    if (!et::VerifyProgramBuffer(verifier) || !can_unpack(*et::GetProgram(data))) return false;
    program_.reset(et::GetProgram(data)->UnPack());
    for (const auto& s : program_->segments) {
      const std::uint64_t room = file_.size() - header[1];
      if (s->offset > room || s->size > room - s->offset) return false;
      const auto bytes = file_.subspan(header[1] + s->offset, s->size);
      segments_.emplace_back(bytes.begin(), bytes.end());
    }
    return true;
  }

  void delegate() {
    std::vector<Blob*> programs;
    for (Blob& s : segments_)
      if (s.size() >= 8 && std::memcmp(s.data() + 4, fb::ProgramIdentifier(), 4) == 0) programs.push_back(&s);
    if (!programs.empty() && !random_.one_in(10)) {
      Blob& chosen = *random_.of(programs);
      chosen = mutate_ir(chosen, random_);
    } else if (!program_->backend_delegate_data.empty()) {
      auto& data = random_.of(program_->backend_delegate_data)->data;
      const Blob changed = mutate_ir(std::as_bytes(std::span(data)), random_);
      data.assign(reinterpret_cast<const std::uint8_t*>(changed.data()),
                  reinterpret_cast<const std::uint8_t*>(changed.data()) + changed.size());
    }
  }

  void tables() {
    switch (random_.below(8)) {
      case 0:
        if (!segments_.empty()) {
          Blob& s = random_.of(segments_);
          s = mutate_bytes(s, random_);
        }
        return;
      case 1:
        if (!program_->named_data.empty()) {
          et::NamedDataT& n = *random_.of(program_->named_data);
          if (random_.one_in(2))
            random_.text(n.key);
          else
            random_.change(n.segment_index);
        }
        return;
      case 2:
        if (program_->constant_segment && !program_->constant_segment->offsets.empty())
          random_.change(random_.of(program_->constant_segment->offsets));
        return;
      case 3:
        if (!program_->segments.empty()) extra_ = {random_.below(segments_.size()), random_.integer(0)};
        return;
      default:
        if (!program_->execution_plan.empty()) plan(*random_.of(program_->execution_plan));
    }
  }

  void plan(et::ExecutionPlanT& p) {
    switch (random_.below(8)) {
      case 0:
        indices(p.inputs);
        return;
      case 1:
        indices(p.outputs);
        return;
      case 2:
        random_.rearrange(p.values, copy_of<et::EValue, et::EValueT>);
        return;
      case 3:
        if (!p.values.empty()) evalue(*random_.of(p.values));
        return;
      case 4:
        random_.text(p.name);
        return;
      case 5:
        if (!p.delegates.empty() && random_.of(p.delegates)->processed) {
          et::BackendDelegateDataReferenceT& r = *random_.of(p.delegates)->processed;
          if (random_.one_in(3))
            r.location = r.location == et::DataLocation::INLINE ? et::DataLocation::SEGMENT : et::DataLocation::INLINE;
          random_.change(r.index);
        }
        return;
      default:
        if (!p.chains.empty()) instructions(*random_.of(p.chains));
    }
  }

  void evalue(et::EValueT& v) {
    if (auto* t = v.val.AsTensor()) {
      switch (random_.below(4)) {
        case 0:
          indices(t->sizes);
          return;
        case 1:
          random_.change(t->data_buffer_idx);
          return;
        case 2:
          random_.change_enum(t->scalar_type, 15);
          return;
        default:
          if (!t->dim_order.empty()) random_.change(random_.of(t->dim_order));
      }
    } else if (auto* i = v.val.AsInt()) {
      random_.change(i->int_val);
    } else if (auto* list = v.val.AsIntList()) {
      indices(list->items);
    }
  }

  void instructions(et::ChainT& chain) {
    if (chain.instructions.empty()) return;
    if (random_.one_in(3)) {
      random_.rearrange(chain.instructions, copy_of<et::Instruction, et::InstructionT>);
      return;
    }
    et::InstructionT& i = *random_.of(chain.instructions);
    if (auto* call = i.instr_args.AsDelegateCall()) {
      if (random_.one_in(4))
        random_.change(call->delegate_index);
      else
        indices(call->args);
    } else if (auto* kernel = i.instr_args.AsKernelCall()) {
      indices(kernel->args);
    }
  }

  template <typename T>
  void indices(std::vector<T>& items) {
    if (!items.empty() && !random_.one_in(3))
      random_.change(random_.of(items));
    else
      random_.rearrange(items);
  }

  Blob put_together() {
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < segments_.size() && i < program_->segments.size(); ++i) {
      program_->segments[i]->offset = (end + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
      program_->segments[i]->size = segments_[i].size();
      end = program_->segments[i]->offset + segments_[i].size();
    }
    const std::vector<Blob> bytes = segments_;
    std::vector<std::uint64_t> offsets;
    for (const auto& s : program_->segments) offsets.push_back(s->offset);
    if (extra_.second != 0 && extra_.first < program_->segments.size()) {
      et::DataSegmentT& s = *program_->segments[extra_.first];
      random_.change(random_.one_in(2) ? s.offset : s.size);
    }
    flatbuffers::FlatBufferBuilder b;
    // The delegates' programs inside the flatbuffer are aligned as ExecuTorch does it by padding the whole of it.
    et::FinishProgramBuffer(b, et::Program::Pack(b, program_.get()));
    const Blob flat = to_blob(b);
    const std::size_t head =
        (flat.size() + kHeaderBytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
    Blob out(head + end);
    std::memcpy(out.data(), flat.data(), kHeaderAt);
    std::memcpy(out.data() + kHeaderAt + kHeaderBytes, flat.data() + kHeaderAt, flat.size() - kHeaderAt);
    std::uint32_t root;
    std::memcpy(&root, flat.data(), sizeof(root));
    root += kHeaderBytes;
    std::memcpy(out.data(), &root, sizeof(root));
    std::memcpy(out.data() + kHeaderAt, "eh00", 4);
    const std::uint32_t length = kHeaderBytes;
    std::memcpy(out.data() + kHeaderAt + 4, &length, sizeof(length));
    const std::array<std::uint64_t, 3> header = {flat.size() + kHeaderBytes, bytes.empty() ? 0 : head, end};
    std::memcpy(out.data() + kHeaderAt + 8, header.data(), sizeof(header));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (!bytes[i].empty()) std::memcpy(out.data() + head + offsets[i], bytes[i].data(), bytes[i].size());
    return out;
  }

  void header(Blob& file) {
    const std::size_t at = kHeaderAt + 8 * random_.below(kHeaderBytes / 8);
    std::int64_t number;
    std::memcpy(&number, file.data() + at, sizeof(number));
    number = random_.integer(number);
    std::memcpy(file.data() + at, &number, sizeof(number));
  }

  std::span<const std::byte> file_;
  Random& random_;
  std::unique_ptr<et::ProgramT> program_;
  std::vector<Blob> segments_;
  std::pair<std::size_t, std::int64_t> extra_ = {0, 0};  // a segment whose offset is to be wrong
};

}  // namespace

Blob mutate_ir(std::span<const std::byte> blob, std::uint64_t seed) {
  Random random(seed);
  return mutate_ir(blob, random);
}

Blob mutate_package(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  return PackageMutator(file, random).run();
}

}  // namespace graft::fuzz
