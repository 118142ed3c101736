#include <gtest/gtest.h>

#include <random>

#include "graft/error.h"
#include "ir/test_blob.h"
#include "package/open_package.h"
#include "package/test_package.h"

// Damaged packages: each either opens or throws InvalidProgram or NotFound. Run under the address and
// undefined-behaviour sanitizers too.
namespace graft {
namespace {

using test::Blob;

test::PteSpec everything() {
  test::PteSpec spec;
  spec.plans = {test::delegated_plan(ir::test::make_blob())};
  test::PlanSpec& plan = spec.plans[0];
  plan.values.push_back(test::number(test::fbe::KernelTypes::Bool, 0));
  plan.values.push_back(test::tensor({3}, 1));
  plan.values.push_back(test::number(test::fbe::KernelTypes::Int, 3));
  test::EValueSpec text;
  text.type = test::fbe::KernelTypes::String;
  text.text = "text";
  plan.values.push_back(text);
  plan.values.push_back(test::tensor({2, 2}));
  plan.inputs = {0, 4, 6};
  plan.outputs = {0, 1, 3, 4, 5, 6};
  plan.operators = {{"aten::copy_", ""}};
  plan.instructions.push_back({test::fbe::InstructionArguments::KernelCall, 0, {0, 1, 2, 0}});
  spec.plans.push_back(test::delegated_plan(ir::test::make_blob(), "decode"));
  spec.plans[1].inline_blob = true;
  spec.named = {{"w", test::bytes_of(64)}};
  spec.constants = {test::bytes_of(12)};
  return spec;
}

class Damage : public ::testing::Test {
 protected:
  // True when the package opened.
  bool opens(const std::string& path, const std::vector<std::string>& data_files = {}) {
    try {
      const auto package = test::OpenPackage::open(path, data_files);
      package->verify_hashes();
      package->for_each_weight([this](const ir::Weight&, const FoundWeight& found) {
        for (const std::byte b : found.bytes) sum_ += std::to_integer<unsigned>(b);
      });
      return true;
    } catch (const InvalidProgram&) {
    } catch (const NotFound&) {
    }
    return false;
  }

  bool opens_as_pte(const Blob& bytes) { return opens(folder_.write("damaged.pte", bytes)); }
  bool opens_as_ptd(const Blob& bytes) { return opens(pte_, {folder_.write("damaged.ptd", bytes)}); }

  // Every length, every bit of the head and a seeded sample of several damaged bytes at once.
  template <typename Opens>
  void damage(const Blob& good, Opens&& good_opens) {
    ASSERT_TRUE(good_opens(good));
    for (std::size_t length = 0; length < good.size(); length += length < 256 ? 1 : 13)
      EXPECT_FALSE(good_opens(Blob(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)))) << length;
    std::size_t refused = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
      Blob damaged = good;
      damaged[at] ^= static_cast<std::byte>(1U << (at % 8));
      refused += !good_opens(damaged);
      damaged[at] = std::byte{0xff};
      refused += !good_opens(damaged);
    }
    EXPECT_GT(refused, 0U);
    std::mt19937 random(7);
    for (int round = 0; round < 3000; ++round) {
      Blob damaged = good;
      const std::size_t count = 1 + random() % 6;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = random() % damaged.size();
        damaged[at] = random() % 2 == 0 ? static_cast<std::byte>(random())
                                        : damaged[at] ^ static_cast<std::byte>(1U << (random() % 8));
      }
      good_opens(damaged);
    }
    ASSERT_TRUE(good_opens(good));
  }

  test::TemporaryFolder folder_;
  std::string pte_;
  std::uint64_t sum_ = 0;
};

TEST_F(Damage, Pte) {
  damage(make_pte(everything()), [this](const Blob& bytes) { return opens_as_pte(bytes); });
}

TEST_F(Damage, Ptd) {
  test::PteSpec spec = everything();
  spec.named.clear();
  pte_ = folder_.write("model.pte", make_pte(spec));
  damage(test::make_ptd({{"w", test::bytes_of(64)}, {"v", test::bytes_of(5)}}),
         [this](const Blob& bytes) { return opens_as_ptd(bytes); });
}

}  // namespace
}  // namespace graft
