// SPDX-License-Identifier: Apache-2.0
// A mixture of experts (kernels/experts.h) in the place of a layer's feed-forward. The rows of a
// pass are listed by expert, so that each expert's weights are read once.
#include <algorithm>
#include <cstring>

#include "kernels/experts.h"
#include "kernels/quantized.h"
#include "model/cpu/cpu_pass.h"

namespace rivulet {
namespace {

// A panel costs as much as this number of rows to read, beside its products.
constexpr int64_t kReadingRows = 4;

// One thread's part of one layer's experts.
class ExpertPass {
 public:
  ExpertPass(const CpuPass& p, const LayerWeights& layer)
      : p_(p),
        layer_(layer),
        own_(*layer.experts),
        config_(*p.config.experts()),
        router_(config_.router),
        a_(p.a.scratch.experts),
        lists_(a_.lists[size_t(p.thread)]) {}

  void Run(int layer) {
    Project();
    p_.Wait();
    PrepareRows();
    p_.Wait();
    lists_.Group(router_, p_.rows, a_.chosen.data(), a_.weights.data());
    if (p_.expert_load != nullptr && p_.thread == 0) Count(layer);
    Gather();
    if (config_.shared_size > 0) {
      p_.Product(layer_.down, p_.a.ffn.data, p_.a.ffn.ld, p_.x.data, p_.x.ld, p_.rows,
                 kernels::Epilogue::kResidual);
    }
    p_.Wait();
    Up();
    p_.Wait();
    Activate();
    p_.Wait();
    Down();
    p_.Wait();
    if (config_.latent_size == 0) return;
    p_.Product(own_.out, a_.latent_sum.data, a_.latent_sum.ld, p_.x.data, p_.x.ld, p_.rows,
               kernels::Epilogue::kResidual);
    p_.Wait();
  }

 private:
  using Array = CpuPass::Array;

  // The rows that experts read: h, or its projection.
  const Array& Input() const { return config_.latent_size > 0 ? a_.latent : p_.a.h; }
  int entries() const { return p_.rows * router_.chosen; }
  int columns() const { return own_.up.packed.n / router_.experts; }  // of an expert, padded

  // The products of the normed rows.
  void Project() const {
    const auto product = [this](const MatrixWeights& m, const Array& y) {
      p_.Product(m, p_.a.h.data, p_.a.h.ld, y.data, y.ld, p_.rows);
    };
    product(own_.router, a_.scores);
    if (config_.shared_size > 0) product(layer_.up, p_.a.ffn);
    if (config_.latent_size > 0) product(own_.in, a_.latent);
  }

  // Chooses the experts of this thread's rows, and applies the shared expert's activation.
  void PrepareRows() const {
    const IndexRange range = p_.RowShare();
    const size_t first = size_t(range.begin) * size_t(router_.chosen);
    kernels::RouteExperts({.router = router_,
                           .scores = a_.scores.row(range.begin),
                           .bias = own_.bias.empty() ? nullptr : own_.bias.data(),
                           .rows = range.end - range.begin,
                           .ld = a_.scores.ld,
                           .experts = a_.chosen.data() + first,
                           .weights = a_.weights.data() + first,
                           .scratch = &a_.routers[size_t(p_.thread)]});
    if (config_.shared_size > 0) {
      ActivateFfn(p_, p_.a.ffn.row(range.begin), p_.a.ffn.ld, config_.shared_size,
                  range.end - range.begin);
    }
    for (int row = range.begin; row < range.end; ++row) {
      float scale = p_.config.block().ffn_multiplier;
      if (config_.shared_gate) {
        float* const gate = a_.scores.row(row) + router_.experts;
        rivulet::Activate(kernels::Activation::kSigmoid, gate, a_.scores.ld, 1, 1);
        scale *= *gate;
      }
      if (scale != 1) Scale(p_.a.ffn.row(row), p_.a.ffn.ld, config_.shared_size, 1, scale);
      if (config_.latent_size > 0) {
        std::fill_n(a_.latent_sum.row(row), a_.latent_sum.ld, 0.0f);
      }
    }
  }

  void Count(int layer) const {
    for (int e = 0; e < router_.experts; ++e) p_.expert_load->Add(layer, e, lists_.count(e));
  }

  // Input `row` of entry `entry` for products with `m`: copied, or rounded to integers.
  void Put(const MatrixWeights& m, int entry, const float* row) const {
    const int k = m.packed.k;
    float* const to = At(m, entry);
    if (kernels::IsQuantized(m.packed.type)) return kernels::QuantizeRowsCpu({row, to, 1, k, k});
    std::memcpy(to, row, size_t(k) * sizeof(float));
  }
  float* At(const MatrixWeights& m, int entry) const {
    return a_.in.data + size_t(entry) * m.input_row_floats();
  }

  // Entries are in the order of lists_: an expert's rows are side by side.
  void Gather() const {
    const IndexRange range = ShareOf(entries(), p_.thread, p_.threads);
    for (int entry = range.begin; entry < range.end; ++entry) {
      Put(own_.up, entry, Input().row(lists_.rows[size_t(entry)]));
    }
  }

  // The product of an expert's rows, without y.
  kernels::GemmArgs ExpertArgs(const MatrixWeights& m, int expert) const {
    kernels::GemmArgs args;
    args.w = m.packed;
    args.w.n = m.packed.n / router_.experts;
    args.w.panels = static_cast<const char*>(m.packed.panels) +
                    size_t(expert) * kernels::PackedSize(args.w.type, args.w.k, args.w.n);
    args.bias = m.bias.data();
    args.x = At(m, lists_.begin[size_t(expert)]);
    args.quantized_x = args.x;
    args.ldx = args.w.k;
    args.rows = lists_.count(expert);
    return args;
  }

  // Threads share the panels of all experts with rows, so that all have as much to do.
  void Up() const {
    const int panels = kernels::NumPanels(columns());
    const auto cost = [this](int e) {
      return lists_.count(e) == 0 ? 0 : kReadingRows + lists_.count(e);
    };
    int64_t total = 0, at = 0;
    for (int e = 0; e < router_.experts; ++e) total += cost(e) * panels;
    const int64_t begin = total * p_.thread / p_.threads,
                  end = total * (p_.thread + 1) / p_.threads;
    // The first panel whose cost begins at `place` or behind it.
    const auto panel_at = [&](int64_t place, int64_t each) {
      return int(std::clamp<int64_t>((place - at + each - 1) / each, 0, panels));
    };
    for (int e = 0; e < router_.experts && at < end; ++e) {
      const int64_t each = cost(e);
      if (each == 0) continue;
      kernels::GemmArgs args = ExpertArgs(own_.up, e);
      args.y = a_.ffn.data + size_t(lists_.begin[size_t(e)]) * size_t(columns());
      args.ldy = columns();
      args.panel_begin = begin <= at ? 0 : panel_at(begin, each);
      args.panel_end = panel_at(end, each);
      if (args.panel_begin < args.panel_end) kernels::GemmCpu(args);
      at += each * panels;
    }
  }

  void Activate() const {
    const IndexRange range = ShareOf(entries(), p_.thread, p_.threads);
    float* const first = a_.ffn.data + size_t(range.begin) * size_t(columns());
    ActivateFfn(p_, first, columns(), config_.size, range.end - range.begin);
    for (int entry = range.begin; entry < range.end; ++entry) {
      Put(own_.down, entry, first + size_t(entry - range.begin) * size_t(columns()));
    }
  }

  // Threads share columns: each column adds its experts in ascending order.
  void Down() const {
    const Array& y = config_.latent_size > 0 ? a_.latent_sum : p_.x;
    for (int e = 0; e < router_.experts; ++e) {
      if (lists_.count(e) == 0) continue;
      kernels::GemmArgs args = ExpertArgs(own_.down, e);
      const auto place = size_t(lists_.begin[size_t(e)]);
      args.y = y.data;
      args.ldy = y.ld;
      args.epilogue = kernels::Epilogue::kScatter;
      args.scatter = {&lists_.rows[place], &lists_.weights[place]};
      const IndexRange panels = ShareOf(kernels::NumPanels(args.w.n), p_.thread, p_.threads);
      args.panel_begin = panels.begin;
      args.panel_end = panels.end;
      kernels::GemmCpu(args);
    }
  }

  const CpuPass& p_;
  const LayerWeights& layer_;
  const ExpertWeights& own_;
  const ExpertsConfig& config_;
  const kernels::Router& router_;
  ExpertScratch& a_;
  kernels::ExpertRows& lists_;  // this thread's, equal in all
};

}  // namespace

void FeedExperts(const CpuPass& p, const LayerWeights& layer, int index) {
  ExpertPass(p, layer).Run(index);
}

}  // namespace rivulet
