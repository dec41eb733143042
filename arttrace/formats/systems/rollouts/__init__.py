"""What other training frameworks save of the rollouts that they made."""
