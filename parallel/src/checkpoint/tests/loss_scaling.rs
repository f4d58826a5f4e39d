use super::*;
use ops::{GradientScaling, LossScaling};

/// Kills: a scale or a count that begins anew, a window that is not the run's, a scale that is no number or
/// out of range.
#[test]
fn loss_scaling_goes_on_from_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let restored = |device: &Float, mesh: &Mesh<Host>, log2| {
        let values = RandomValues { seed: 2 };
        let loss = LossScaling { log2, good: 0, window: 7 };
        let scaling = GradientScaling { clip: None, loss: Some(loss) };
        let mut trainer = Trainer::new(&at(device, mesh, &values), SHAPE, (ADAMW, scaling))?;
        if log2 == 5 {
            trainer.step(&batch(), 0.125)?;
            trainer.step(&batch(), 0.125)?;
            save(folder.path(), &mut trainer)?;
        } else {
            let (model, optimizer, _) = trainer.parts();
            let state = File::open(&folder.path().join("optimizer"))?;
            let params = (&SHAPE.into(), &mut model.params()[..]);
            restore_optimizer("state", &state, optimizer, params, mesh)?;
        }
        Ok(trainer.parts().1.scaling().loss)
    };
    let again = |log2| on(ALONE, |device, mesh| restored(&device, &mesh, log2));
    let saved = again(5).unwrap();
    assert_eq!(saved, Some(LossScaling { log2: 5, good: 2, window: 7 }));
    assert_eq!(again(9).unwrap(), saved);
    for wrong in ["5", "5 x", "-1 0", "25 0"] {
        let notes = [("optimizer", "adamw"), ("updates", "0"), ("loss_scale", wrong)];
        let notes = notes.map(|(key, value)| (key.to_string(), value.to_string())).into();
        Writer::create::<&str>(&folder.path().join("optimizer"), &notes, &[]).unwrap().finish().unwrap();
        let said =
            format!("state: the loss scale is {wrong:?}; it must be two numbers, the first at most 24");
        assert_eq!(again(9), Err(said));
    }
}
