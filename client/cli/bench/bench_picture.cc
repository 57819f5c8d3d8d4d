// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_picture.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace rivulet {
namespace {

constexpr double kWidth = 900, kLeft = 80, kRight = 40, kTop = 84, kPlotHeight = 380;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kBottom = kTop + kPlotHeight;
constexpr double kTableTop = kBottom + 84, kLine = 24;
constexpr int kPoints = 400;

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

void Text(std::string* svg, double x, double y, absl::string_view attributes,
          absl::string_view text) {
  absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes,
                        Escape(text));
}

void Line(std::string* svg, double x1, double y1, double x2, double y2, const char* color) {
  absl::StrAppendFormat(svg,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                        x1, y1, x2, y2, color);
}

// "0.05", "2", "10000": without trailing zeros.
std::string Number(double value) { return absl::StrFormat("%.6g", value); }

std::string Milliseconds(double nanoseconds) {
  const double ms = nanoseconds / 1e6;
  return absl::StrFormat("%.*f", ms < 1 ? 3 : ms < 100 ? 2 : ms < 1000 ? 1 : 0, ms);
}

// Maps values to positions in the picture.
struct Axes {
  double nines = 1;             // across: 1 - 10^-nines is the last percentile
  double low = 0.1, high = 10;  // up: milliseconds
  double X(double position) const { return kLeft + kPlotWidth * position / nines; }
  double Y(double ms) const {
    return kBottom -
           kPlotHeight * std::log10(std::clamp(ms, low, high) / low) / std::log10(high / low);
  }
};

Axes AxesFor(const std::vector<Curve>& curves) {
  Axes axes;
  double least = 1e300, most = 0;
  for (const Curve& curve : curves) {
    const BenchHistogram& h = *curve.histogram;
    least = std::min(least, std::max(h.Quantile(0), 1e3) / 1e6);
    most = std::max(most, std::max(static_cast<double>(h.max()), 1e3) / 1e6);
    axes.nines = std::max(axes.nines, std::min(std::log10(static_cast<double>(h.count())), 6.0));
  }
  if (curves.empty()) return axes;
  // Rounded to the next of 1, 2 and 5 times a power of ten, so that little of the height is empty.
  const auto round = [](double ms, bool up) {
    const double decade = std::pow(10, std::floor(std::log10(ms)));
    double result = up ? decade * 10 : decade;
    for (const double step : {2.0, 5.0}) {
      if (up && decade * step >= ms) result = std::min(result, decade * step);
      if (!up && decade * step <= ms) result = std::max(result, decade * step);
    }
    return result;
  };
  axes.low = round(least, false);
  axes.high = std::max(round(most, true), axes.low * 10);
  return axes;
}

void DrawGrid(const Axes& axes, std::string* svg) {
  for (double decade = std::pow(10, std::floor(std::log10(axes.low))); decade <= axes.high * 1.0001;
       decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double ms = decade * step;
      if (ms < axes.low * 0.9999 || ms > axes.high * 1.0001) continue;
      Line(svg, kLeft, axes.Y(ms), kWidth - kRight, axes.Y(ms), step == 1 ? "#d1d5db" : "#eef0f3");
      Text(svg, kLeft - 8, axes.Y(ms) + 4, "text-anchor=\"end\"", Number(ms));
    }
  }
  const std::pair<double, const char*> marks[] = {
      {0, "0"},        {0.5, "50"},       {0.75, "75"},        {0.9, "90"},          {0.99, "99"},
      {0.999, "99.9"}, {0.9999, "99.99"}, {0.99999, "99.999"}, {0.999999, "99.9999"}};
  for (const auto& [percentile, label] : marks) {
    const double position = -std::log10(1 - percentile);
    if (position > axes.nines + 1e-9) break;
    Line(svg, axes.X(position), kTop, axes.X(position), kBottom, "#d1d5db");
    Text(svg, axes.X(position), kBottom + 20, "text-anchor=\"middle\"", label);
  }
  Text(svg, kLeft + kPlotWidth / 2, kBottom + 42, "text-anchor=\"middle\" fill=\"#4b5563\"",
       "percentile");
  absl::StrAppendFormat(svg,
                        "<text transform=\"translate(24 %.1f) rotate(-90)\" text-anchor=\"middle\" "
                        "fill=\"#4b5563\">milliseconds</text>\n",
                        kTop + kPlotHeight / 2);
}

void DrawCurve(const Axes& axes, const Curve& curve, std::string* svg) {
  const BenchHistogram& h = *curve.histogram;
  // No percentile beyond the largest value.
  const double last = std::min(std::log10(static_cast<double>(h.count())), axes.nines);
  absl::StrAppendFormat(svg,
                        "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
                        "stroke-linejoin=\"round\"%s points=\"",
                        curve.color, curve.dashed ? " stroke-dasharray=\"5 4\"" : "");
  for (int i = 0; i <= kPoints; ++i) {
    const double position = last * i / kPoints;
    const double ms = h.Quantile(1 - std::pow(10, -position)) / 1e6;
    absl::StrAppendFormat(svg, "%.1f,%.1f ", axes.X(position), axes.Y(ms));
  }
  const double end_y = axes.Y(static_cast<double>(h.max()) / 1e6);
  absl::StrAppendFormat(svg, "%.1f,%.1f\"/>\n", axes.X(last), end_y);
  absl::StrAppendFormat(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
                        axes.X(last), end_y, curve.color);
}

void DrawTable(const std::vector<Curve>& curves, std::string* svg) {
  constexpr std::pair<const char*, double> kColumns[] = {
      {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}};
  constexpr double kFirst = 420, kStep = 88;
  const auto column = [&](size_t i) { return kFirst + kStep * static_cast<double>(i); };
  Text(svg, kLeft + 36, kTableTop, "fill=\"#4b5563\"", "milliseconds");
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    Text(svg, column(i), kTableTop, "text-anchor=\"end\" fill=\"#4b5563\"", kColumns[i].first);
  }
  Text(svg, column(std::size(kColumns)), kTableTop, "text-anchor=\"end\" fill=\"#4b5563\"",
       "count");
  double y = kTableTop;
  for (const Curve& curve : curves) {
    y += kLine;
    absl::StrAppendFormat(svg,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                          "stroke-width=\"3\"%s/>\n",
                          kLeft, y - 4, kLeft + 26, y - 4, curve.color,
                          curve.dashed ? " stroke-dasharray=\"5 4\"" : "");
    Text(svg, kLeft + 36, y, "", curve.label);
    for (size_t i = 0; i < std::size(kColumns); ++i) {
      Text(svg, column(i), y, "text-anchor=\"end\"",
           Milliseconds(curve.histogram->Quantile(kColumns[i].second)));
    }
    Text(svg, column(std::size(kColumns)), y, "text-anchor=\"end\"",
         absl::StrCat(curve.histogram->count()));
  }
}

}  // namespace

std::string PercentilePicture(absl::string_view title, absl::string_view subtitle,
                              std::span<const Curve> curves) {
  std::vector<Curve> drawn;
  for (const Curve& curve : curves) {
    if (curve.histogram->count() > 0) drawn.push_back(curve);
  }
  const Axes axes = AxesFor(drawn);
  const double height = kTableTop + kLine * static_cast<double>(drawn.size()) + 24;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" "
      "fill=\"#111827\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      kWidth, height, kWidth, height);
  Text(&svg, kLeft, 36, "font-size=\"18\" font-weight=\"bold\"", title);
  Text(&svg, kLeft, 60, "fill=\"#4b5563\"", subtitle);
  DrawGrid(axes, &svg);
  for (const Curve& curve : drawn) DrawCurve(axes, curve, &svg);
  DrawTable(drawn, &svg);
  svg += "</svg>\n";
  return svg;
}

}  // namespace rivulet
