//! Small image of a model that is too large to be proven: the same parts with the panel's sizes, unless the
//! model's are smaller, adjusted where ranks have to divide them.
use super::fitted::{fitted, sound};
use kernels::Heads;
use layers::{Experts, Groups, Latent, Positions, Shape, SharedExpert};
use parallel::Layout;
use std::cmp::Ordering;

/// Returns the image, and the sizes that were reduced, in words; `None` if no small model fits the layout.
#[must_use]
pub fn image(shape: Shape, layout: &Layout) -> Option<(Shape, String)> {
    let image = fitted(small(shape), &layout.into())?;
    let sizes = |of: &Shape| {
        let experts = of.experts.unwrap_or(Experts::MIXTRAL);
        [
            ("width", of.width),
            ("blocks", of.blocks),
            ("query heads", of.heads.queries),
            ("KV heads", of.heads.keys),
            ("features of a head", of.heads.dim),
            ("features of a value head", if of.heads.value == of.heads.dim { 0 } else { of.heads.value }),
            ("features of the latent", of.latent.map_or(0, |latent| latent.keys)),
            ("features of the queries' latent", of.latent.and_then(|latent| latent.queries).unwrap_or(0)),
            ("hidden features", of.hidden),
            ("vocabulary", of.vocabulary),
            ("positions", of.context().unwrap_or(0)),
            ("experts", experts.count),
            ("chosen experts", experts.chosen),
            ("features of an expert", experts.hidden),
            ("features of the shared expert", experts.shared.map_or(0, |shared| shared.hidden)),
        ]
    };
    let both = sizes(&shape).into_iter().zip(sizes(&image)).filter(|(whole, part)| whole != part);
    let words: Vec<_> = both.map(|((what, whole), (_, part))| format!("{what} {whole} to {part}")).collect();
    Some((image, words.join(", ")))
}

/// Returns the heads with few features in every part that they have, and values as wide as keys, less wide or
/// wider, as before.
fn narrow(of: Heads) -> Heads {
    let Heads { dim, value, plain, rotated, .. } = of;
    let [plain, rotated, rest] = [plain, rotated, dim - plain - rotated].map(|part| part.min(3));
    let narrow = plain + rotated + rest;
    let value = match value.cmp(&dim) {
        Ordering::Less => value.min(narrow.max(2) - 1),
        Ordering::Equal => narrow,
        Ordering::Greater => narrow + 1,
    };
    Heads { dim: narrow, value, plain, rotated, ..of }
}

fn small(shape: Shape) -> Shape {
    let Heads { queries, keys, .. } = shape.heads;
    let few = queries.min(8);
    let shared = |keys: usize| if few.is_multiple_of(2) { few / 2 } else { keys.min(1) };
    let keys = match keys {
        1 => 1,
        all if all == queries => few,
        some => shared(some),
    };
    let experts = |of: Experts| {
        sound(Experts {
            count: of.count.min(6),
            chosen: of.chosen.min(3),
            hidden: of.hidden.min(3),
            groups: of.groups.map(|of| Groups { count: of.count.min(3), chosen: of.chosen.min(2) }),
            shared: of.shared.map(|of| SharedExpert { hidden: of.hidden.min(8), ..of }),
            ..of
        })
    };
    let vocabulary = shape.vocabulary.min(13);
    let mut blocks = shape.first_of_kinds();
    blocks.extend((shape.blocks > 1 && blocks.len() == 1).then_some(shape.blocks - 1));
    let shape = shape.of_blocks(&blocks);
    Shape {
        width: shape.width.min(9),
        heads: narrow(Heads { queries: few, keys, ..shape.heads }),
        latent: shape.latent.map(|of| Latent {
            keys: of.keys.min(4),
            queries: of.queries.map(|n| n.min(5)),
            ..of
        }),
        hidden: shape.hidden.min(8),
        vocabulary,
        padding: shape.padding.map(|id| id.min(vocabulary - 1)),
        positions: match shape.positions {
            Positions::Learned(n) => Positions::Learned(n.min(8)),
            rotary @ Positions::Rotary(_) => rotary,
        },
        experts: shape.experts.map(experts),
        ..shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use crate::cases::panel::PANEL;
    use layers::BlockKind;

    /// Shrinks every model of the panel after enlarging it a thousand times. Kills: a part missing from the
    /// small model, a size that the layout cannot split, a size not named in the message.
    #[test]
    fn an_image_has_all_parts_and_fits() {
        for layout in ["none", "tp=2", "pp=3", "tp=4,dp=2"] {
            let layout: Layout = layout.parse().unwrap();
            for member in PANEL.iter() {
                let heads @ Heads { queries, keys, .. } = member.shape.heads;
                let large = Shape {
                    width: 9000,
                    blocks: 80,
                    heads: Heads {
                        queries: queries * 8,
                        keys: if keys == 1 { 1 } else { keys * 8 },
                        ..heads.widened(40)
                    },
                    hidden: 8000,
                    vocabulary: 13_000,
                    ..member.shape
                };
                let (image, words) = image(large, &layout).unwrap();
                assert!(words.starts_with("width 9000 to ") && words.contains("blocks 80 to "), "{words}");
                assert!(image.width <= 16 && image.hidden <= 16 && image.vocabulary <= 16, "{image:?}");
                assert!(layout.fits(image).is_ok() && Subject::small(image, &layout).is_ok());
                let parts = |of: Shape| {
                    let norms = (of.norm, of.norms, of.head_norm, of.joint_norm);
                    let has = (norms, of.feed_forward, of.bias, of.tied, of.window.is_some());
                    let kinds = of.kinds().into_iter().map(|BlockKind { shape, .. }| {
                        (shape.experts.is_some(), shape.window.is_some(), shape.rope.is_some())
                    });
                    let experts = of.experts.map(|of| (of.scoring, of.groups.is_some(), of.shared.is_some()));
                    (has, experts, kinds.collect::<Vec<_>>())
                };
                assert_eq!(parts(image), parts(large), "{}", member.name);
                let ratio = |of: Heads| (of.keys == 1, of.keys == of.queries);
                assert_eq!(ratio(image.heads), ratio(large.heads), "{}", member.name);
            }
        }
    }
}
