//! The bias of experts' choice, over a resumed run.
use super::*;

/// Kills: a bias of the choice that is not saved, that a resumed run moves from where it first was, or does
/// not move.
#[test]
fn a_resumed_run_moves_the_bias_of_its_router_on() {
    let (scoring, bias) = (Scoring::Sigmoid, Some(0.0625));
    let experts = Experts { count: 4, chosen: 2, hidden: 16, scoring, bias, ..Experts::MIXTRAL };
    let (family, shape) = (families::EQUIPART_MOE, Shape { experts: Some(experts), ..SHAPE });
    let config = config(family, shape);
    let fresh = Model::fresh(config, 5);
    let [once, twice] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let bias = |dir: &Path| {
        let file = File::open(&dir.join("model.safetensors")).unwrap();
        file.values::<f32>("model.layers.1.mlp.gate.e_score_correction_bias", &[4]).unwrap()
    };
    let adamw = ADAMW;
    let losses = train_from(&fresh, once.path(), adamw, "ep=2", None);
    let mut parts = train_from(&fresh, twice.path(), adamw, "ep=2", Some(3));
    let before = bias(twice.path());
    parts.extend(train_from(&fresh, twice.path(), adamw, "ep=2", None));
    assert_eq!(parts, losses);
    assert!(files(once.path()) == files(twice.path()), "the folders differ");
    let moved = bias(once.path());
    let steps: Vec<f32> = moved.iter().zip(&before).map(|(new, old)| (new - old) / 0.0625).collect();
    assert!(steps.iter().all(|n| (n - n.round()).abs() < 1e-4 && n.abs() < 3.5), "{steps:?}");
    assert!(steps.iter().any(|n| n.abs() > 0.5), "three steps: {steps:?}");
}
