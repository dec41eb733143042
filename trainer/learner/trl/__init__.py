"""The TRL engine: TRL's GRPOTrainer on given trajectories."""
