//! Rooflines of a machine: operations a second that a rank reaches, by the operations that it does for each
//! byte that it reads or sends, with the axes of layouts as points. The limits are those that the fastest
//! product, memory and links reach, not those of a data sheet.
use crate::picture::{FAINT, INK, MUTED, Picture, shade};

/// Sizes, in user units.
const LEFT: f64 = 76.0;
const SIZE: [f64; 2] = [620.0, 340.0];
const TOP: f64 = 84.0;
const RIGHT: f64 = 190.0;
const BOTTOM: f64 = 84.0;

/// One limit of bytes a second: the memory, or a level of links.
pub struct Roof {
    /// Its name.
    pub name: String,
    /// Bytes a second.
    pub bandwidth: f64,
}

/// An axis of a layout: the operations of a rank for each byte that it sends along it.
pub struct AxisPoint {
    /// The layout and the axis.
    pub name: String,
    /// Operations for each byte.
    pub intensity: f64,
    /// Index of the roof below which it lies.
    pub roof: usize,
}

/// Returns the picture as the text of an SVG file. Both axes are logarithmic. A point on the slope of its
/// roof waits for its links; one under the flat part waits for products.
#[must_use]
pub fn draw(title: &str, peak: f64, roofs: &[Roof], points: &[AxisPoint]) -> String {
    let ridge = |roof: &Roof| peak / roof.bandwidth;
    let all = roofs.iter().map(ridge).chain(points.iter().map(|point| point.intensity));
    let (least, most) = all.fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
    let [from, to] = [(least / 8.0).log10().floor(), (most * 4.0).log10().ceil()];
    let low = (peak.log10() - 4.0).floor();
    let x_of = |intensity: f64| LEFT + (intensity.log10().clamp(from, to) - from) / (to - from) * SIZE[0];
    let y_of = |rate: f64| {
        TOP + SIZE[1] * (1.0 - (rate.log10().clamp(low, low + 5.0) - low) / (peak.log10() + 0.4 - low))
    };
    let line = "operations a second against operations for each byte, both logarithmic".to_owned();
    let mut picture = Picture::new([LEFT + SIZE[0] + RIGHT, TOP + SIZE[1] + BOTTOM], title, &[line]);
    let bottom = y_of(10f64.powf(low));
    for decade in from as i32..=to as i32 {
        picture.upright(x_of(10f64.powi(decade)), [TOP, bottom], &power(decade));
    }
    for decade in low as i32..=peak.log10().floor() as i32 {
        let y = y_of(10f64.powi(decade));
        picture.line(&format!("{LEFT:.1} {y:.1}H{:.1}", LEFT + SIZE[0]), FAINT, "");
        picture.text([LEFT - 10.0, y + 4.0], "end", MUTED, &power(decade));
    }
    picture.text([LEFT + SIZE[0] / 2.0, bottom + 44.0], "middle", INK, "operations for each byte");
    let (top, right) = (y_of(peak), LEFT + SIZE[0]);
    for (at, roof) in roofs.iter().enumerate() {
        let colour = shade(0.6 + at as f64 / roofs.len() as f64, 0.42);
        let start = 10f64.powf(from).max(10f64.powf(low) / roof.bandwidth);
        let slope = format!(
            "{:.1} {:.1}L{:.1} {top:.1}H{right:.1}",
            x_of(start),
            y_of(start * roof.bandwidth),
            x_of(ridge(roof))
        );
        picture.line(&slope, &colour, r#" stroke-width="1.8""#);
        picture.text(
            [right + 10.0, top + 20.0 + 18.0 * at as f64],
            "start",
            &colour,
            &format!("{}: ridge at {:.0}", roof.name, ridge(roof)),
        );
    }
    picture.text([right + 10.0, top + 2.0], "start", INK, "products");
    for (at, point) in points.iter().enumerate() {
        let (x, y) = (x_of(point.intensity), y_of((point.intensity * roofs[point.roof].bandwidth).min(peak)));
        let colour = shade(0.6 + point.roof as f64 / roofs.len() as f64, 0.42);
        picture.add(&format!(
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="5" fill="#ffffff" stroke="{colour}" stroke-width="2"/>"##
        ));
        let below = y + 26.0 + 18.0 * at as f64;
        picture.line(
            &format!("{x:.1} {:.1}V{:.1}", y + 6.0, below - 12.0),
            MUTED,
            r#" stroke-dasharray="1 3""#,
        );
        let anchor = if x > LEFT + SIZE[0] * 0.66 { "end" } else { "start" };
        picture.text([x, below], anchor, INK, &point.name);
    }
    picture.file()
}

/// A power of ten in words.
fn power(decade: i32) -> String {
    match decade {
        0..=3 => format!("{}", 10u32.pow(decade.unsigned_abs())),
        _ => format!("10^{decade}"),
    }
}
