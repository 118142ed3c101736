#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "program_generated.h"
#include "weight/test_container.h"

// Writes small .pte files for tests, in the format of ExecuTorch's Python code.
namespace graft::test {

namespace fbe = executorch_flatbuffer;

struct EValueSpec {
  fbe::KernelTypes type = fbe::KernelTypes::Null;
  std::int64_t integer = 0;  // Int, Bool
  double real = 0;
  std::string text;
  fbe::ScalarType scalar_type = fbe::ScalarType::FLOAT;  // Tensor
  std::vector<std::int32_t> sizes;
  std::uint32_t buffer = 0;  // > 0: constant
  fbe::TensorShapeDynamism dynamism = fbe::TensorShapeDynamism::STATIC;
  bool planned = false;  // has memory that ExecuTorch allocates
  std::string external;  // key of external data
};

inline EValueSpec tensor(std::vector<std::int32_t> sizes, std::uint32_t buffer = 0) {
  EValueSpec out;
  out.type = fbe::KernelTypes::Tensor;
  out.sizes = std::move(sizes);
  out.buffer = buffer;
  return out;
}
inline EValueSpec number(fbe::KernelTypes type, std::int64_t integer, double real = 0) {
  EValueSpec out;
  out.type = type;
  out.integer = integer;
  out.real = real;
  return out;
}

struct InstructionSpec {
  fbe::InstructionArguments type = fbe::InstructionArguments::DelegateCall;
  std::int32_t index = 0;
  std::vector<std::int32_t> args;
};

struct PlanSpec {
  std::string name = "forward";
  std::vector<EValueSpec> values;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> outputs;
  std::vector<InstructionSpec> instructions;
  std::vector<std::pair<std::string, std::string>> operators;
  std::string delegate = "GraftBackend";
  Blob blob;
  bool inline_blob = false;
};

struct PteSpec {
  std::vector<PlanSpec> plans;
  std::vector<std::pair<std::string, Blob>> named;
  std::vector<Blob> constants;  // index 1 and on
  std::uint64_t named_gap = 0;  // unused bytes before the first named data
  std::uint32_t version = 0;
  bool leave_size_out = false;  // an old header without the size of the segments
};

// linear(x, w) of ir::test::make_blob as ExecuTorch would call it.
inline PlanSpec delegated_plan(Blob blob, std::string name = "forward") {
  PlanSpec plan;
  plan.name = std::move(name);
  plan.values = {tensor({16, 4}), tensor({16, 4})};
  plan.values[0].dynamism = plan.values[1].dynamism = fbe::TensorShapeDynamism::DYNAMIC_BOUND;
  plan.inputs = {0};
  plan.outputs = {1};
  plan.instructions = {{fbe::InstructionArguments::DelegateCall, 0, {0, 1}}};
  plan.blob = std::move(blob);
  return plan;
}

namespace detail {

inline flatbuffers::Offset<fbe::EValue> write(flatbuffers::FlatBufferBuilder& b, const EValueSpec& spec) {
  flatbuffers::Offset<void> value;
  switch (spec.type) {
    case fbe::KernelTypes::Int:
      value = fbe::CreateInt(b, spec.integer).Union();
      break;
    case fbe::KernelTypes::Bool:
      value = fbe::CreateBool(b, spec.integer != 0).Union();
      break;
    case fbe::KernelTypes::Double:
      value = fbe::CreateDouble(b, spec.real).Union();
      break;
    case fbe::KernelTypes::String:
      value = fbe::CreateStringDirect(b, spec.text.c_str()).Union();
      break;
    case fbe::KernelTypes::Tensor: {
      std::vector<std::uint8_t> order(spec.sizes.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint8_t>(i);
      const auto sizes = b.CreateVector(spec.sizes);
      const auto dim_order = b.CreateVector(order);
      flatbuffers::Offset<fbe::AllocationDetails> allocation;
      if (spec.planned) allocation = fbe::CreateAllocationDetails(b, 1);
      flatbuffers::Offset<fbe::ExtraTensorInfo> extra;
      if (!spec.external.empty())
        extra = fbe::CreateExtraTensorInfoDirect(b, 0, spec.external.c_str(), fbe::TensorDataLocation::EXTERNAL);
      value = fbe::CreateTensor(b, spec.scalar_type, 0, sizes, dim_order, false, spec.buffer, allocation, 0,
                                spec.dynamism, extra)
                  .Union();
      break;
    }
    case fbe::KernelTypes::Null:
      value = fbe::CreateNull(b).Union();
      break;
    default:
      value = fbe::CreateIntListDirect(b).Union();
  }
  return fbe::CreateEValue(b, spec.type, value);
}

inline flatbuffers::Offset<fbe::Instruction> write(flatbuffers::FlatBufferBuilder& b, const InstructionSpec& spec) {
  flatbuffers::Offset<void> args;
  switch (spec.type) {
    case fbe::InstructionArguments::DelegateCall:
      args = fbe::CreateDelegateCallDirect(b, spec.index, &spec.args).Union();
      break;
    case fbe::InstructionArguments::KernelCall:
      args = fbe::CreateKernelCallDirect(b, spec.index, &spec.args).Union();
      break;
    default:
      args = fbe::CreateMoveCall(b).Union();
  }
  return fbe::CreateInstruction(b, spec.type, args);
}

}  // namespace detail

// The head of a .pte (flatbuffer with header, padded to the segments) and its segments relative to that.
inline std::pair<Blob, std::vector<Segment>> make_pte_parts(const PteSpec& spec) {
  flatbuffers::FlatBufferBuilder b;
  std::vector<Segment> segments;
  std::uint64_t end = 0;
  const auto add_segment = [&](const Blob& bytes) {
    segments.push_back({(end + 127) / 128 * 128, bytes});
    end = segments.back().offset + bytes.size();
    return static_cast<std::uint32_t>(segments.size() - 1);
  };
  flatbuffers::Offset<fbe::SubsegmentOffsets> constants;
  if (!spec.constants.empty()) {
    Blob all;
    std::vector<std::uint64_t> offsets = {0};
    for (const Blob& constant : spec.constants) {
      offsets.push_back(all.size());
      all.insert(all.end(), constant.begin(), constant.end());
      all.resize((all.size() + 15) / 16 * 16);
    }
    constants = fbe::CreateSubsegmentOffsetsDirect(b, add_segment(all), &offsets);
  }
  std::vector<flatbuffers::Offset<fbe::BackendDelegateInlineData>> inline_data;
  std::vector<flatbuffers::Offset<fbe::ExecutionPlan>> plans;
  for (const PlanSpec& plan : spec.plans) {
    std::uint32_t index;
    if (plan.inline_blob) {
      index = static_cast<std::uint32_t>(inline_data.size());
      b.ForceVectorAlignment(plan.blob.size(), 1, 16);
      const auto data = b.CreateVector(reinterpret_cast<const std::uint8_t*>(plan.blob.data()), plan.blob.size());
      inline_data.push_back(fbe::CreateBackendDelegateInlineData(b, data));
    } else {
      index = add_segment(plan.blob);
    }
    std::vector<flatbuffers::Offset<fbe::EValue>> values;
    for (const EValueSpec& value : plan.values) values.push_back(detail::write(b, value));
    std::vector<flatbuffers::Offset<fbe::Instruction>> instructions;
    for (const InstructionSpec& instruction : plan.instructions) instructions.push_back(detail::write(b, instruction));
    const std::vector<flatbuffers::Offset<fbe::Chain>> chains = {
        fbe::CreateChainDirect(b, nullptr, nullptr, &instructions)};
    std::vector<flatbuffers::Offset<fbe::Operator>> operators;
    for (const auto& [name, overload] : plan.operators)
      operators.push_back(fbe::CreateOperatorDirect(b, name.c_str(), overload.c_str()));
    const auto reference = fbe::CreateBackendDelegateDataReference(
        b, plan.inline_blob ? fbe::DataLocation::INLINE : fbe::DataLocation::SEGMENT, index);
    const std::vector<flatbuffers::Offset<fbe::BackendDelegate>> delegates = {
        fbe::CreateBackendDelegateDirect(b, plan.delegate.c_str(), reference)};
    plans.push_back(fbe::CreateExecutionPlanDirect(b, plan.name.c_str(),
                                                   fbe::CreateContainerMetadataDirect(b, "et_in", "et_out"), &values,
                                                   &plan.inputs, &plan.outputs, &chains, &operators, &delegates));
  }
  std::vector<flatbuffers::Offset<fbe::NamedData>> named;
  end += spec.named_gap;
  for (const auto& [key, bytes] : spec.named)
    named.push_back(fbe::CreateNamedDataDirect(b, key.c_str(), add_segment(bytes)));
  std::vector<flatbuffers::Offset<fbe::DataSegment>> tables;
  for (const Segment& segment : segments)
    tables.push_back(fbe::CreateDataSegment(b, segment.offset, segment.bytes.size()));
  fbe::FinishProgramBuffer(
      b, fbe::CreateProgramDirect(b, spec.version, &plans, nullptr, &inline_data, &tables, constants, nullptr, &named));
  if (segments.empty()) {
    const auto* data = reinterpret_cast<const std::byte*>(b.GetBufferPointer());
    return {Blob(data, data + b.GetSize()), {}};
  }
  Blob out = with_header({b.GetBufferPointer(), b.GetSize()}, 32);
  const std::size_t program_bytes = out.size();
  const std::size_t base = (program_bytes + 127) / 128 * 128;
  out.resize(base);
  std::memcpy(out.data() + 8, "eh00", 4);
  put(out, 12, spec.leave_size_out ? 24 : 32, 4);
  put(out, 16, program_bytes, 8);
  put(out, 24, base, 8);
  put(out, 32, spec.leave_size_out ? 0 : end, 8);
  return {out, segments};
}

inline Blob make_pte(const PteSpec& spec) { return joined(make_pte_parts(spec)); }

}  // namespace graft::test
