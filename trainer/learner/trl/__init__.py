"""The TRL engine: TRL's GRPOTrainer on recorded trajectories."""
