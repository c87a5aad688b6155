#include "trainer/observe/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trainer/core/json.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

constexpr double kSize = 1000;  // In the SVG's own coordinates, which are stretched to the area.

std::string Format(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

std::string Trimmed(double value) {  // Three digits, no zeros behind the point.
  return Format("%.3g", value);
}

std::string Percent(double share) { return Format("%.2f", 100 * share) + "%"; }

const char* Name(Curve::Style style) {
  switch (style) {
    case Curve::Style::kFaint:
      return "faint";
    case Curve::Style::kDots:
      return "dots";
    case Curve::Style::kMarks:
      return "marks";
    case Curve::Style::kTicks:
      return "ticks";
    case Curve::Style::kLine:
      break;
  }
  return "line";
}

bool HasValues(const Curve& curve) {
  return curve.style != Curve::Style::kMarks && curve.style != Curve::Style::kTicks;
}

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  // 0 at the bottom, 1 at the top; NaN for what is not on the axis.
  double At(double y) const {
    if (!logarithmic) return (y - low) / (high - low);
    return y > 0 ? (std::log(y) - std::log(low)) / (std::log(high) - std::log(low))
                 : std::numeric_limits<double>::quiet_NaN();
  }
};

Axis AxisOf(const Plot& plot, bool logarithmic) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Curve& curve : plot.curves) {
    if (!HasValues(curve)) continue;
    for (const Point& p : curve.points) {
      if (logarithmic && !(p.y > 0)) continue;
      low = std::min(low, p.y);
      high = std::max(high, p.y);
    }
  }
  if (!(low <= high)) return {0, 1, false};
  if (logarithmic) {
    const double pad = std::exp(0.04 * (std::log(high) - std::log(low))) * 1.001;
    return {low / pad, high * pad, true};
  }
  // Values that hardly change get a band around them, wide enough for labels that differ.
  if (plot.from_zero && low > 0 && low < 0.4 * high) low = 0;
  double pad = 0.04 * (high - low);
  if (high - low < 5e-3 * std::abs(high)) pad = 0.02 * std::abs(high);
  if (pad == 0) pad = 1;
  return {low == 0 ? 0 : low - pad, high + pad, false};
}

std::string PathOf(const Curve& curve, const Axis& axis, double max_x) {
  std::string path;
  bool open = false;
  for (const Point& p : curve.points) {
    const double y = HasValues(curve) ? axis.At(p.y) : 0;
    if (!std::isfinite(y)) {
      open = false;
      continue;
    }
    path += open ? 'L' : 'M';
    path += Format("%.1f", kSize * p.x / max_x) + ' ' + Format("%.1f", kSize * (1 - y));
    open = true;
    if (!HasValues(curve)) {
      path += curve.style == Curve::Style::kMarks ? "V0" : "V955";
      open = false;
    }
  }
  return path;
}

// Round caps make a dot of a line without length, whatever the stretch.
std::string DotsOf(const Curve& curve, const Axis& axis, double max_x) {
  std::string path;
  for (const Point& p : curve.points) {
    const double y = axis.At(p.y);
    if (!std::isfinite(y)) continue;
    path +=
        'M' + Format("%.1f", kSize * p.x / max_x) + ' ' + Format("%.1f", kSize * (1 - y)) + "h0";
  }
  return path;
}

std::string ColourClass(int colour) {
  return colour < 0 ? "ct" : "c" + std::to_string(colour % kColours);
}

}  // namespace

std::vector<double> Ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(1, count);
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double nice : {1.0, 2.0, 5.0}) {
    if (nice * decade >= rough * (1 - 1e-9)) {
      step = nice * decade;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < 100; ++i) {
    const double value = (first + i) * step;
    if (value > high + 1e-9 * step) break;
    ticks.push_back(std::abs(value) < 1e-9 * step ? 0 : value);
  }
  return ticks;
}

std::vector<double> LogTicks(double low, double high, int count) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const double decades = std::log10(high) - std::log10(low);
  if (decades < 0.7) return Ticks(low, high, count);
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / count)));
  std::vector<double> ticks;
  for (int e = first; e <= last; e += stride) {
    for (const double nice : {1.0, 2.0, 5.0}) {
      if (nice != 1 && decades > 2.5) continue;
      const double value = nice * std::pow(10, e);
      if (value >= low && value <= high) ticks.push_back(value);
    }
  }
  return ticks;
}

std::string TickLabel(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e15 || size < 1e-3) {
    const int exponent = static_cast<int>(std::floor(std::log10(size) + 1e-9));
    return Trimmed(value / std::pow(10, exponent)) + "e" + std::to_string(exponent);
  }
  if (size >= 9999.5) {
    for (const auto& [unit, scale] :
         {std::pair("T", 1e12), std::pair("G", 1e9), std::pair("M", 1e6), std::pair("k", 1e3)}) {
      if (size >= scale * 0.99995) return Format("%.4g", value / scale) + unit;
    }
  }
  return Format("%.4g", value);
}

bool BeginsLogarithmic(const Plot& plot) {
  if (!plot.may_be_log) return false;
  std::vector<double> values;
  for (const Curve& curve : plot.curves) {
    if (!HasValues(curve)) continue;
    for (const Point& p : curve.points) values.push_back(p.y);
  }
  if (values.size() < 3) return false;
  std::sort(values.begin(), values.end());
  return values.front() > 0 && values.back() > 20 * values[values.size() * 3 / 4];
}

std::string PlotToHtml(const Plot& plot, double max_x) {
  const bool any = std::any_of(plot.curves.begin(), plot.curves.end(),
                               [](const Curve& c) { return HasValues(c) && !c.points.empty(); });
  if (!any) return "";
  const bool logarithmic = BeginsLogarithmic(plot);
  const Axis axis = AxisOf(plot, logarithmic);
  std::string html = "<figure class=\"plot\" id=\"" + plot.id + "\"><figcaption><b>" + plot.title +
                     "</b> <span class=\"unit\">" + plot.unit + "</span>";
  if (plot.may_be_log) {
    html += "<button class=\"log\" type=\"button\" aria-pressed=\"" +
            std::string(logarithmic ? "true" : "false") + "\" hidden>log</button>";
  }
  html += "</figcaption>\n<div class=\"legend\">";
  for (size_t i = 0; i < plot.curves.size(); ++i) {
    const Curve& curve = plot.curves[i];
    if (curve.points.empty()) continue;
    html += "<button type=\"button\" class=\"" + ColourClass(curve.colour) + "\" data-curve=\"" +
            std::to_string(i) + "\" aria-pressed=\"true\"><i class=\"" + Name(curve.style) +
            "\"></i>" + EscapeHtml(curve.name) + "</button>";
  }
  html += "</div>\n<div class=\"frame\"><div class=\"ys\">";
  std::string grid;
  const std::vector<double> ys =
      logarithmic ? LogTicks(axis.low, axis.high, 5) : Ticks(axis.low, axis.high, 5);
  for (const double tick : ys) {
    const double y = axis.At(tick);
    html += "<span style=\"bottom:" + Percent(y) + "\">" + TickLabel(tick) + "</span>";
    grid += "M0 " + Format("%.1f", kSize * (1 - y)) + "H" + Format("%.0f", kSize);
  }
  html +=
      "</div><div class=\"area\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" "
      "role=\"img\" aria-label=\"" +
      plot.title + "\"><path class=\"grid\" d=\"" + grid + "\"/>";
  for (size_t i = 0; i < plot.curves.size(); ++i) {
    const Curve& curve = plot.curves[i];
    if (curve.points.empty()) continue;
    html += "\n<g class=\"" + ColourClass(curve.colour) + " " + Name(curve.style) +
            "\" data-curve=\"" + std::to_string(i) + "\"><path class=\"stroke\" d=\"" +
            PathOf(curve, axis, max_x) + "\"/>";
    if (curve.style == Curve::Style::kDots || (HasValues(curve) && curve.points.size() == 1)) {
      html += "<path class=\"dot\" d=\"" + DotsOf(curve, axis, max_x) + "\"/>";
    }
    html += "</g>";
  }
  html += "</svg></div><div class=\"xs\">";
  for (const double tick : Ticks(0, max_x, 4)) {
    html += "<span style=\"left:" + Percent(tick / max_x) + "\">" + TickLabel(tick) + "</span>";
  }
  return html + "</div></div></figure>\n";
}

namespace {

JsonObject& AddPoints(JsonObject& object, const std::vector<Point>& points, const char* format_y) {
  std::string x, y;
  for (const Point& p : points) {
    x += (x.empty() ? "" : ",") + Format("%.15g", p.x);
    y += (y.empty() ? "" : ",") + Format(format_y, p.y);
  }
  return object.AddRaw("x", "[" + x + "]").AddRaw("y", "[" + y + "]");
}

}  // namespace

std::string PointsToJson(const std::vector<Point>& points, const char* format_y) {
  JsonObject object;
  return AddPoints(object, points, format_y).Text();
}

std::string PlotToJson(const Plot& plot, double max_x) {
  std::vector<std::string> curves;
  for (const Curve& curve : plot.curves) {
    JsonObject object;
    object.Add("name", Printable(curve.name))
        .Add("colour", ColourClass(curve.colour))
        .Add("style", Name(curve.style))
        .Add("run", curve.run);
    curves.push_back(AddPoints(object, curve.points, "%.6g").Text());
  }
  return EscapeScript(JsonObject()
                          .Add("id", plot.id)
                          .Add("max", max_x)
                          .Add("from_zero", plot.from_zero)
                          .AddRaw("curves", JsonArray(curves))
                          .Text());
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string EscapeScript(std::string json) {
  for (size_t at = 0; (at = json.find_first_of("<>&", at)) != std::string::npos; at += 6) {
    const char* const escape = json[at] == '<'   ? "\\u003c"
                               : json[at] == '>' ? "\\u003e"
                                                 : "\\u0026";
    json.replace(at, 1, escape);
  }
  return json;
}

}  // namespace fsdp
