#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace graft {

// The triangular filters of Slaney's Auditory Toolbox from 0 to `highest` Hz, each of area 1, over the frequencies of a
// transform of n_fft points: transformers' mel_filter_bank(norm="slaney", mel_scale="slaney"). In f64.
class MelFilters {
 public:
  MelFilters(std::int64_t mels, std::int64_t n_fft, std::int64_t sampling_rate, double highest);
  // Those of Kaldi: triangles over its mels, without a norm (norm=None, mel_scale="kaldi", triangularize_in_mel_space).
  static MelFilters of_kaldi(std::int64_t mels, std::int64_t n_fft, std::int64_t sampling_rate, double highest);

  std::size_t size() const { return filters_.size(); }
  // Of one filter, over n_fft / 2 + 1 powers.
  double apply(std::size_t mel, std::span<const double> power) const;

 private:
  // Triangles between edges, times `scales`, over frequencies in the unit of the edges.
  MelFilters(std::span<const double> edges, std::span<const double> frequencies, std::span<const double> scales);

  struct Filter {  // over the frequencies from `first` on
    std::size_t first = 0;
    std::vector<double> weights;
  };

  std::vector<Filter> filters_;
};

}  // namespace graft
