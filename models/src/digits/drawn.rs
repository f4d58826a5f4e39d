//! Synthetic handwritten digits: pen strokes, with slant, size and position drawn anew for each digit.
use super::Set;
use tensor::mix;

mod glyphs;
use glyphs::GLYPHS;

/// Number of classes: the ten digits.
pub(super) const CLASSES: usize = GLYPHS.len();
/// Rows and columns of an image, in pixels.
const SIDE: usize = 28;

type DrawnPoint = (f64, f64);

/// Draws `count` images: set `which` of this seed.
pub(super) fn set(seed: u64, which: u64, count: usize) -> Set {
    let seed = mix(mix(seed) ^ which);
    let labels: Vec<u8> = (0..count).map(|i| label(seed, i)).collect();
    let draw = |(i, &label): (usize, &u8)| draw(label, Chance::new(seed ^ i as u64));
    Set { images: labels.iter().enumerate().flat_map(draw).collect(), labels, rows: SIDE, cols: SIDE }
}

/// Returns the label of image `i`: every ten images in a row show the ten digits, in random order.
fn label(seed: u64, i: usize) -> u8 {
    let mut chance = Chance::new(!seed ^ (i / CLASSES) as u64);
    let mut order: [u8; CLASSES] = std::array::from_fn(|digit| digit as u8);
    for end in (1..CLASSES).rev() {
        order.swap(end, chance.below(end + 1));
    }
    order[i % CLASSES]
}

/// Draws one digit.
fn draw(label: u8, mut chance: Chance) -> Vec<u8> {
    let ways = GLYPHS[usize::from(label)];
    let glyph = ways[chance.below(ways.len())];
    let hand = Hand::new(&mut chance);
    let (nib, ink) = (chance.between(1.2, 2.2), chance.between(200.0, 255.0));
    let mut sheet = [0.0; SIDE * SIDE];
    for stroke in glyph {
        let points: Vec<DrawnPoint> = stroke.iter().map(|point| hand.place(*point)).collect();
        for line in smooth(&smooth(&points)).windows(2) {
            ink_line(&mut sheet, line[0], line[1], nib);
        }
    }
    let pixel = |wet: f64| (wet * ink + chance.between(-24.0, 24.0)) as u8; // saturates
    sheet.map(pixel).to_vec()
}

/// Handwriting of one digit.
struct Hand {
    key: u64,
    wide: f64,
    high: f64,
    slant: f64,
    rise: f64,
    shift: DrawnPoint,
}

impl Hand {
    fn new(chance: &mut Chance) -> Self {
        let (wide, high) = (chance.between(0.7, 1.15), chance.between(0.7, 1.0));
        let (slant, rise) = (chance.between(-0.3, 0.4), chance.between(-0.1, 0.1));
        let shift = (chance.between(-3.25, 3.25), chance.between(-3.25, 3.25));
        Self { key: chance.next(), wide, high, slant, rise, shift }
    }
    /// Returns the place of a glyph's point, in pixels. Points that coincide stay together.
    fn place(&self, (x, y): (i8, i8)) -> DrawnPoint {
        let mut chance = Chance::new(self.key ^ (i64::from(x) * 64 + i64::from(y)) as u64);
        let x = (f64::from(x) - 6.0 + chance.between(-0.6, 0.6)) * self.wide;
        let y = (f64::from(y) - 10.0 + chance.between(-0.6, 0.6)) * self.high;
        let middle = (SIDE as f64 - 1.0) / 2.0;
        (x - self.slant * y + middle + self.shift.0, y + self.rise * x + middle + self.shift.1)
    }
}

/// Cuts the corners of a stroke; its ends stay. Source: Chaikin, "An algorithm for high-speed curve
/// generation", Computer Graphics and Image Processing 3, 1974.
fn smooth(points: &[DrawnPoint]) -> Vec<DrawnPoint> {
    let on = |a: DrawnPoint, b: DrawnPoint, part: f64| (a.0 + (b.0 - a.0) * part, a.1 + (b.1 - a.1) * part);
    let cut = |line: &[DrawnPoint]| [on(line[0], line[1], 0.25), on(line[0], line[1], 0.75)];
    let last = &points[points.len() - 1..];
    points[..1].iter().copied().chain(points.windows(2).flat_map(cut)).chain(last.iter().copied()).collect()
}

/// Inks the pixels within `nib` of the line from `a` to `b`, fading over the last pixel.
fn ink_line(sheet: &mut [f64; SIDE * SIDE], a: DrawnPoint, b: DrawnPoint, nib: f64) {
    let reach = nib + 0.5;
    // Casts saturate: points beyond the sheet end at its edges.
    let near = |a: f64, b: f64| (a.min(b) - reach) as usize..((a.max(b) + reach + 1.0) as usize).min(SIDE);
    let along = (b.0 - a.0, b.1 - a.1);
    let length = along.0 * along.0 + along.1 * along.1;
    for y in near(a.1, b.1) {
        for x in near(a.0, b.0) {
            let from = (x as f64 - a.0, y as f64 - a.1);
            let part = if length > 0.0 { (from.0 * along.0 + from.1 * along.1) / length } else { 0.0 };
            let part = part.clamp(0.0, 1.0);
            let off = (from.0 - along.0 * part, from.1 - along.1 * part);
            let wet = (reach - (off.0 * off.0 + off.1 * off.1).sqrt()).clamp(0.0, 1.0);
            let pixel = &mut sheet[y * SIDE + x];
            *pixel = wet.max(*pixel);
        }
    }
}

/// Random number generator, by hashing.
struct Chance {
    key: u64,
    drawn: u64,
}

impl Chance {
    fn new(key: u64) -> Self {
        Self { key: mix(key), drawn: 0 }
    }
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.key ^ self.drawn)
    }
    /// Returns an integer from 0 to `n` − 1.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
    /// Returns a number in this interval.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squared(a: &[u8], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b) * (f64::from(*a) - b)).sum()
    }
    /// Number of images of `test` for which the nearest of these pictures has the right label.
    fn named(pictures: &[(Vec<f64>, u8)], test: &Set) -> usize {
        let nearest = |i: usize| {
            let off = |picture: &(Vec<f64>, u8)| squared(test.image(i), &picture.0);
            pictures.iter().min_by(|a, b| off(a).total_cmp(&off(b))).unwrap().1
        };
        (0..test.len()).filter(|&i| nearest(i) == test.labels[i]).count()
    }
    fn picture(set: &Set, i: usize) -> Vec<f64> {
        set.image(i).iter().copied().map(f64::from).collect()
    }

    /// Kills: arithmetic that differs between machines, a random draw changed by accident.
    #[test]
    fn what_was_drawn_once_is_drawn_for_ever() {
        let set = set(1, 0, 100);
        let hash = set.labels.iter().chain(&set.images).fold(0, |hash, byte| mix(hash ^ u64::from(*byte)));
        assert_eq!(set.labels[..20], [6, 9, 1, 2, 8, 5, 3, 4, 7, 0, 8, 4, 5, 9, 3, 6, 0, 1, 7, 2]);
        assert_eq!(hash, 13_556_547_861_600_470_802);
    }

    /// Kills: an image that depends on those before it or on their number, a seed or a set without effect.
    #[test]
    fn an_image_is_a_function_of_seed_set_and_place() {
        let all = set(1, 0, 57);
        for count in [0, 1, 9, 10, 11, 56] {
            let few = set(1, 0, count);
            assert_eq!((few.len(), few.pixels(), few.images.len()), (count, 784, count * 784));
            assert_eq!(
                (&few.labels[..], &few.images[..]),
                (&all.labels[..count], &all.images[..count * 784])
            );
        }
        let pictures = [&all, &set(2, 0, 57), &set(1, 1, 57)];
        assert!(pictures[1..].iter().all(|other| other.labels != all.labels));
        let mut different: Vec<&[u8]> = pictures.iter().flat_map(|set| set.images.chunks(784)).collect();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), 3 * 57);
    }

    /// Kills: a digit left out, a digit drawn twice as often, digits that always come in the same order.
    #[test]
    fn ten_in_a_row_are_ten_digits_in_changing_order() {
        let set = set(3, 1, 1000);
        let mut orders: Vec<&[u8]> = set.labels.chunks(10).collect();
        for order in &orders {
            assert!((0..10).all(|digit| order.contains(&digit)), "{order:?}");
        }
        orders.sort_unstable();
        orders.dedup();
        assert!(orders.len() > 95, "{}", orders.len());
        for place in 0..10 {
            assert!((0..10).all(|digit| set.labels.chunks(10).any(|order| order[place] == digit)));
        }
    }

    /// Kills: strokes off the sheet, ink and paper exchanged, noise that hides the digit.
    #[test]
    fn digits_are_ink_on_paper() {
        let set = set(4, 0, 500);
        for i in 0..set.len() {
            let share = |most: u8| set.image(i).iter().filter(|pixel| **pixel <= most).count() as f64 / 784.0;
            let (paper, ink) = (share(24), 1.0 - share(150));
            assert!(paper > 0.4 && ink > 0.03 && ink < 0.45, "{i}: {paper} of paper, {ink} of ink");
        }
    }

    /// Classifies by the nearest class mean, the best that a rule without hidden units can learn. Kills:
    /// digits so alike that a linear classifier suffices, digits so different that no classifier learns them,
    /// wrong labels.
    #[test]
    fn the_nearest_image_names_a_digit_and_the_nearest_mean_often_does_not() {
        let (train, test) = (set(5, 0, 1000), set(5, 1, 150));
        let images: Vec<_> = (0..train.len()).map(|i| (picture(&train, i), train.labels[i])).collect();
        let mean = |digit: u8| {
            let mut mean = vec![0.0; 784];
            for (image, _) in images.iter().filter(|(_, label)| *label == digit) {
                mean.iter_mut().zip(image).for_each(|(mean, pixel)| *mean += pixel / 100.0);
            }
            (mean, digit)
        };
        let means: Vec<_> = (0..10).map(mean).collect();
        let (by_image, by_mean) = (named(&images, &test), named(&means, &test));
        assert!(by_image >= 132 && (45..113).contains(&by_mean), "{by_image} and {by_mean} of 150");
    }

    /// Kills: corners not rounded, ends lost, strokes that separate at a join.
    #[test]
    fn strokes_are_smooth_keep_their_ends_and_stay_joined() {
        let cut = smooth(&[(0.0, 0.0), (4.0, 0.0), (4.0, 8.0)]);
        assert_eq!(cut, [(0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (4.0, 2.0), (4.0, 6.0), (4.0, 8.0)]);
        let hand = Hand::new(&mut Chance::new(7));
        assert_eq!(hand.place((6, 9)), hand.place((6, 9)));
        assert_ne!(hand.place((6, 9)), Hand::new(&mut Chance::new(8)).place((6, 9)));
    }

    /// Compares a line's ink with values computed by hand. Kills: a pen of another width, an edge without a
    /// transition, a line without an end, a point without ink, a panic where the pen leaves the sheet.
    #[test]
    fn a_line_is_inked_as_wide_as_the_nib() {
        let mut sheet = [0.0; SIDE * SIDE];
        ink_line(&mut sheet, (5.0, 10.0), (9.0, 10.0), 1.25);
        let down: Vec<f64> = (7..14).map(|y| sheet[y * SIDE + 7]).collect();
        assert_eq!(down, [0.0, 0.0, 0.75, 1.0, 0.75, 0.0, 0.0]);
        let along: Vec<f64> = (2..13).map(|x| sheet[10 * SIDE + x]).collect();
        assert_eq!(along, [0.0, 0.0, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.0, 0.0]);
        let before: f64 = sheet.iter().sum();
        ink_line(&mut sheet, (6.0, 10.0), (6.0, 10.0), 1.25); // already inked: no change
        for (x, y) in [(-9.0, 10.0), (40.0, 10.0), (10.0, -9.0), (10.0, 40.0)] {
            ink_line(&mut sheet, (x, y), (x, y), 1.25);
        }
        assert_eq!(sheet.iter().sum::<f64>(), before);
        ink_line(&mut sheet, (27.0, 27.0), (27.0, 27.0), 1.25);
        ink_line(&mut sheet, (-1.0, 0.0), (-1.0, 0.0), 1.25);
        assert_eq!((sheet[SIDE * SIDE - 1], sheet[0]), (1.0, 0.75));
    }
}
