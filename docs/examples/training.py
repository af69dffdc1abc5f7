"""A plain PyTorch training with the guard: six lines name it, and a stuck worker can no longer hold the night."""

import torch
from torch.utils.data import TensorDataset

import fluxguard

inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
pictures = TensorDataset(inputs, inputs.sum(1, keepdim=True))


def main():
    fluxguard.train_begins()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = fluxguard.DataLoader(pictures, batch_size=8, shuffle=True, num_workers=2)
    step = 0
    for epoch in range(5):
        for batch, target in loader:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            fluxguard.step(step, epoch=epoch + 1, loss=loss.item())
    with fluxguard.phase("saving"), fluxguard.saved("model.pt") as path:
        torch.save(model.state_dict(), path)
    print(f"{step} steps, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
