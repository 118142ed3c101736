#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "batch/task.h"
#include "serve/api_error.h"

namespace graft::batch {

// A task that computes rows of the same sizes in one call: those of a shard, sorted. Which rows share a call depends on
// the shard alone, so that a shard that is computed again has the same bits.
template <typename Prepared>
class GroupedTask : public Task {
 public:
  explicit GroupedTask(OnRows on_rows) : on_rows_(std::move(on_rows)) {}

  void start(Shard&) override {}

  void finish(Shard& shard) override {
    std::vector<Item> items;
    for (std::size_t i = 0; i < shard.rows.size(); ++i) {
      RowResult& result = shard.results[i];
      result.error = shard.rows[i].error;
      if (!result.error.empty()) continue;
      attempt(result, [&] { items.push_back({i, prepare(shard.rows[i])}); });
    }
    on_rows_(shard.rows.size() - items.size());
    std::ranges::stable_sort(items, [&](const Item& a, const Item& b) { return before(a.row, b.row); });
    for (std::span<Item> rest = items; !rest.empty();) {
      const auto most = std::min(rest.size(), static_cast<std::size_t>(most_rows()));
      std::size_t count = 1;
      while (count < most && !before(rest[0].row, rest[count].row)) ++count;
      compute(rest.first(count), shard);
      rest = rest.subspan(count);
      on_rows_(count);
    }
    shard.left = 0;
  }

 protected:
  struct Item {
    std::size_t index = 0;  // in the shard
    Prepared row;
  };

  // Throws BadRow, or another InvalidArgument.
  virtual Prepared prepare(const Row& row) = 0;
  // Rows of which neither is before the other can share a call.
  virtual bool before(const Prepared& a, const Prepared& b) const = 0;
  virtual std::int64_t most_rows() const = 0;
  virtual std::vector<RowResult> run(std::span<const Item> items) = 0;

 private:
  // What is wrong with the data of a row is its error; anything else ends the run.
  template <typename Work>
  static void attempt(RowResult& result, const Work& work) {
    try {
      work();
    } catch (const InvalidArgument& error) {
      result.error = error.what();
    } catch (const ExecutionError& error) {
      result.error = error.what();
    } catch (const serve::ApiError& error) {
      result.error = error.what();
    }
  }

  void compute(std::span<const Item> items, Shard& shard) {
    RowResult all;
    attempt(all, [&] {
      std::vector<RowResult> results = run(items);
      for (std::size_t i = 0; i < items.size(); ++i) shard.results[items[i].index] = std::move(results[i]);
    });
    if (all.error.empty()) return;
    if (items.size() == 1)
      shard.results[items[0].index] = std::move(all);
    else  // one of them, or some
      for (std::size_t i = 0; i < items.size(); ++i) compute(items.subspan(i, 1), shard);
  }

  OnRows on_rows_;
};

}  // namespace graft::batch
