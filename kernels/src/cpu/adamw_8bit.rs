//! A step of `AdamW` with moments of 8 bits, block by block: a block's moments are decoded, updated, used for
//! the step as they are, and rounded to the codes of their new unit.
use super::matrices::{In, Out};
use super::optimizer::{AdamTerms, change};
use tensor::{CodeKind, Coded, Scalar};

/// Most elements of a block.
const MOST: usize = 256;

/// Numbers of a block, where vectors read and write whole lines of a cache.
#[repr(align(64))]
struct BlockBuffer<T>([T; MOST]);

#[inline(always)]
pub(super) fn adamw_8bit<S: Scalar>(
    mut w: Out<S>,
    mut master: Option<Out<S::Wide>>,
    [mut m_codes, mut m_units, mut v_codes, mut v_units]: [Out<S::Wide>; 4],
    g: In<S::Wide>,
    factor: In<S::Wide>,
    (constants, [number, block]): ([f64; 5], [usize; 2]),
) {
    assert!(block <= MOST && block.is_multiple_of(4), "a block of {block} elements");
    let AdamTerms { keep, first, second, beta1, beta2, eps } = AdamTerms::new(constants, number);
    let [fresh1, fresh2] = [beta1, beta2].map(|beta| S::Wide::ONE - beta);
    let factor = factor.at(0, 0);
    let [mut m, mut v] = [(); 2].map(|()| BlockBuffer([S::Wide::ZERO; MOST]));
    for i in 0..g.rows() {
        let m_codes = m_codes.row(i).chunks_mut(block / 4).zip(m_units.row(i));
        let v_codes = v_codes.row(i).chunks_mut(block / 4).zip(v_units.row(i));
        let mut masters = master.as_mut().map(|master| master.row(i).chunks_mut(block));
        let blocks = g.row(i).chunks(block).zip(w.row(i).chunks_mut(block)).zip(m_codes.zip(v_codes));
        for ((g, w), ((m_codes, m_unit), (v_codes, v_unit))) in blocks {
            let master = masters.as_mut().and_then(Iterator::next);
            let [m, v] = [&mut m, &mut v].map(|averages| &mut averages.0[..g.len()]);
            let [m_bytes, v_bytes] = [bytes_of(m_codes), bytes_of(v_codes)];
            let [mut most_m, mut most_v] = [S::Wide::ZERO; 2];
            for ((m, &code), &g) in m.iter_mut().zip(&m_bytes.0).zip(g) {
                *m = *m_unit * S::Wide::decoded(code, CodeKind::Signed) * beta1 + fresh1 * (g * factor);
                most_m = most_m.larger(*m);
            }
            for ((v, &code), &g) in v.iter_mut().zip(&v_bytes.0).zip(g) {
                let g = g * factor;
                *v = *v_unit * S::Wide::decoded(code, CodeKind::Unsigned) * beta2 + fresh2 * (g * g);
                most_v = most_v.larger(*v);
            }
            let moved = m.iter().zip(&*v).map(|(&m, &v)| first * m * S::Wide::adam_scale(v * second, eps));
            change(w, master, moved, |w, moved| w * keep - moved);
            *m_unit = encode(m_codes, (m, most_m), CodeKind::Signed);
            *v_unit = encode(v_codes, (v, most_v), CodeKind::Unsigned);
        }
    }
}

#[inline(always)]
fn bytes_of<W: Coded>(codes: &[W]) -> BlockBuffer<W::Code> {
    let mut bytes = BlockBuffer([W::Code::default(); MOST]);
    for (bytes, codes) in bytes.0.as_chunks_mut().0.iter_mut().zip(codes) {
        *bytes = codes.codes();
    }
    bytes
}

/// Returns the unit.
#[inline(always)]
fn encode<W: Coded>(codes: &mut [W], (values, largest): (&[W], W), kind: CodeKind) -> W {
    let unit = largest.unit(kind);
    let (units, mut bytes) = (unit.reciprocal(), BlockBuffer([W::Code::default(); MOST]));
    for (code, &value) in bytes.0.iter_mut().zip(values) {
        *code = (value * units).code(kind);
    }
    for (codes, bytes) in codes.iter_mut().zip(bytes.0.as_chunks().0) {
        *codes = W::from_codes(*bytes);
    }
    unit
}
